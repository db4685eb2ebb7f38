#include "engine/analysis/liveness.h"

#include <algorithm>

namespace glim {
namespace {

// For each step on the communication stream: the position of the first compute step that waits for it or for a later one.
std::vector<int64_t> find_joins(const Schedule& schedule) {
  std::vector<int64_t> joins(schedule.steps.size(), Lifetime::kAfter);
  std::vector<uint32_t> position_of_event(schedule.num_events, 0);
  for (uint32_t p = 0; p < schedule.steps.size(); ++p) {
    if (schedule.steps[p].signal != ~0U) position_of_event[schedule.steps[p].signal] = p;
  }
  std::vector<uint32_t> pending;  // communication steps that no compute step has waited for yet
  for (uint32_t p = 0; p < schedule.steps.size(); ++p) {
    const ScheduleStep& step = schedule.steps[p];
    if (step.stream == Stream::kCommunication) {
      pending.push_back(p);
      continue;
    }
    for (const uint32_t event : schedule.waits_of(step)) {
      std::erase_if(pending, [&](uint32_t from) {
        if (from > position_of_event[event]) return false;
        joins[from] = p;
        return true;
      });
    }
  }
  return joins;
}

}  // namespace

std::vector<Lifetime> find_lifetimes(const Graph& graph, const Schedule& schedule) {
  std::vector<Lifetime> lifetimes(graph.num_values());
  const std::vector<int64_t> joins = find_joins(schedule);
  for (uint32_t p = 0; p < schedule.steps.size(); ++p) {
    const NodeId n = schedule.steps[p].node;
    const int64_t end = schedule.steps[p].stream == Stream::kCommunication ? joins[p] : static_cast<int64_t>(p);
    for (uint32_t k = 0; k < graph.node(n).num_outputs; ++k) lifetimes[graph.output(n, k).index] = {p, end};
    for (const ValueId v : graph.inputs(n)) {
      if (v.valid()) lifetimes[v.index].end = std::max(lifetimes[v.index].end, end);
    }
  }
  // A leaf keeps its bytes from run to run, unless it is a state that this program replaces.
  std::vector<bool> replaced(graph.num_values(), false);
  for (const StateUpdate& update : graph.updates()) {
    replaced[update.state.index] = true;
    lifetimes[update.next.index].end = Lifetime::kAfter;
  }
  for (const Leaf& leaf : graph.leaves()) {
    if (!replaced[leaf.value.index]) lifetimes[leaf.value.index].end = Lifetime::kAfter;
  }
  for (const NamedValue& output : graph.outputs()) lifetimes[output.value.index].end = Lifetime::kAfter;
  return lifetimes;
}

}  // namespace glim
