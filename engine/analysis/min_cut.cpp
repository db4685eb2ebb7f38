#include "engine/analysis/min_cut.h"

#include <algorithm>

namespace glim {
namespace {
constexpr uint32_t kUnreached = UINT32_MAX;
}

void MinCut::add_arc(uint32_t from, uint32_t to, int64_t capacity) {
  from_.insert(from_.end(), {from, to});
  to_.insert(to_.end(), {to, from});
  left_.insert(left_.end(), {capacity, 0});
}

void MinCut::sort_arcs() {
  first_.assign(num_vertices_ + 1, 0);
  for (const uint32_t from : from_) ++first_[from + 1];
  for (uint32_t v = 0; v < num_vertices_; ++v) first_[v + 1] += first_[v];
  sorted_.resize(from_.size());
  std::vector<uint32_t> place(first_.begin(), first_.end() - 1);
  for (uint32_t arc = 0; arc < from_.size(); ++arc) sorted_[place[from_[arc]]++] = arc;
}

bool MinCut::find_levels(uint32_t source, uint32_t sink) {
  level_.assign(num_vertices_, kUnreached);
  level_[source] = 0;
  std::vector<uint32_t> queue{source};
  for (size_t head = 0; head < queue.size(); ++head) {
    const uint32_t v = queue[head];
    for (uint32_t k = first_[v]; k < first_[v + 1]; ++k) {
      const uint32_t to = to_[sorted_[k]];
      if (left_[sorted_[k]] == 0 || level_[to] != kUnreached) continue;
      level_[to] = level_[v] + 1;
      queue.push_back(to);
    }
  }
  return level_[sink] != kUnreached;
}

// Fills shortest ways until none is left. The way is kept in a list, not on the stack: graphs may be deep.
void MinCut::saturate(uint32_t source, uint32_t sink) {
  next_arc_.assign(first_.begin(), first_.end() - 1);
  std::vector<uint32_t> way;
  uint32_t at = source;
  for (;;) {
    if (at == sink) {
      int64_t flow = kInfinite;
      for (const uint32_t arc : way) flow = std::min(flow, left_[arc]);
      size_t keep = way.size();
      for (size_t k = way.size(); k-- > 0;) {
        left_[way[k]] -= flow;
        left_[way[k] ^ 1U] += flow;
        if (left_[way[k]] == 0) keep = k;
      }
      at = from_[way[keep]];
      way.resize(keep);
      continue;
    }
    uint32_t& k = next_arc_[at];
    while (k < first_[at + 1] && (left_[sorted_[k]] == 0 || level_[to_[sorted_[k]]] != level_[at] + 1)) ++k;
    if (k < first_[at + 1]) {
      way.push_back(sorted_[k]);
      at = to_[sorted_[k]];
    } else if (way.empty()) {
      return;
    } else {
      level_[at] = kUnreached;
      at = from_[way.back()];
      way.pop_back();
    }
  }
}

std::vector<bool> MinCut::solve(uint32_t source, uint32_t sink) {
  sort_arcs();
  while (find_levels(source, sink)) saturate(source, sink);
  std::vector<bool> sink_side(num_vertices_, false);
  sink_side[sink] = true;
  std::vector<uint32_t> queue{sink};
  for (size_t head = 0; head < queue.size(); ++head) {
    for (uint32_t k = first_[queue[head]]; k < first_[queue[head] + 1]; ++k) {
      const uint32_t arc = sorted_[k];
      if (left_[arc ^ 1U] == 0 || sink_side[to_[arc]]) continue;
      sink_side[to_[arc]] = true;
      queue.push_back(to_[arc]);
    }
  }
  return sink_side;
}

}  // namespace glim
