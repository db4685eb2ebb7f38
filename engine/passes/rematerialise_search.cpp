#include "engine/passes/rematerialise_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "engine/analysis/min_cut.h"

namespace glim {
namespace {

using Problem = RematerialisationProblem;
using Selection = RematerialisationSelection;

// Differences in time below this part of everything are rounding.
constexpr double kEpsilon = 1e-12;
// Identical layers have identical prices per byte and would all change sides at once. So early bytes are made dearer by up to
// this part: early layers are recomputed first, when most of what later layers saved is free again.
constexpr double kTilt = 1e-3;

struct Totals {
  double seconds = 0, bytes = 0;
};
Totals totals(const Problem& problem) {
  Totals sum;
  for (const Problem::Item& item : problem.items) sum.seconds += item.seconds;
  for (const Problem::Buffer& buffer : problem.buffers) sum.bytes += buffer.bytes;
  return sum;
}

// The items and buffers on the sink's side: items that run again, buffers that are needed.
struct Sides {
  std::vector<bool> items, buffers;
  bool operator==(const Sides&) const = default;
};

// Minimises seconds_weight * time + bytes_weight * bytes. An item runs again when it is cut from the source (its time), a buffer
// is saved when it is cut from its item (its bytes); running an item again needs its operands. With a growing price of bytes the
// sink's side only grows, so what is in `low` is in the answer, and nothing outside of `high` is.
Sides cut(const Problem& problem, double seconds_weight, double bytes_weight, double tilt, const Sides& low, const Sides& high) {
  constexpr uint32_t kSource = 0, kSink = 1;
  uint32_t num_vertices = 2;
  const auto place = [&](const std::vector<bool>& in_low, const std::vector<bool>& in_high) {
    std::vector<uint32_t> vertices(in_low.size());
    for (size_t k = 0; k < in_low.size(); ++k) vertices[k] = in_low[k] ? kSink : in_high[k] ? num_vertices++ : kSource;
    return vertices;
  };
  const std::vector<uint32_t> items = place(low.items, high.items), buffers = place(low.buffers, high.buffers);
  const Totals sum = totals(problem);
  const double scale = std::ldexp(1.0, 58) / std::max(seconds_weight * sum.seconds + bytes_weight * (1 + tilt) * sum.bytes, 1e-300);
  MinCut network(num_vertices);
  const auto add_arc = [&](uint32_t from, uint32_t to, int64_t capacity) {
    if (from != to && to != kSource && from != kSink && capacity > 0 && !(from == kSource && to == kSink))
      network.add_arc(from, to, capacity);
  };
  const auto num_items = static_cast<double>(problem.items.size());
  for (uint32_t i = 0; i < problem.items.size(); ++i) {
    const Problem::Item& item = problem.items[i];
    add_arc(kSource, items[i], std::llround(seconds_weight * item.seconds * scale));
    const double price = bytes_weight * (1 + tilt * (1 - i / num_items));
    for (const uint32_t b : problem.outputs_of(item)) add_arc(items[i], buffers[b], std::llround(price * problem.buffers[b].bytes * scale));
    for (const uint32_t b : problem.operands_of(item)) add_arc(buffers[b], items[i], MinCut::kInfinite);
  }
  const std::vector<bool> sink_side = network.solve(kSource, kSink);
  Sides sides = low;
  for (size_t i = 0; i < items.size(); ++i) sides.items[i] = sink_side[items[i]];
  for (size_t b = 0; b < buffers.size(); ++b) sides.buffers[b] = sink_side[buffers[b]];
  return sides;
}

Sides least_sides(const Problem& problem) {
  Sides sides{std::vector<bool>(problem.items.size(), false), std::vector<bool>(problem.buffers.size(), false)};
  for (size_t b = 0; b < problem.buffers.size(); ++b) sides.buffers[b] = problem.buffers[b].needed;
  return sides;
}
Sides most_sides(const Problem& problem, const std::vector<bool>& pinned) {
  Sides sides{std::vector<bool>(problem.items.size(), true), std::vector<bool>(problem.buffers.size(), true)};
  for (size_t i = 0; i < problem.items.size(); ++i) sides.items[i] = !problem.items[i].pinned && (pinned.empty() || !pinned[i]);
  return sides;
}

Selection select(const Problem& problem, const Sides& sides) {
  Selection selection(problem);
  for (uint32_t i = 0; i < problem.items.size(); ++i) {
    if (sides.items[i]) selection.flip(i);
  }
  selection.prune();
  return selection;
}

// Tries every choice of the given items, the others held, and leaves the best that fits (the present one if none is better).
void search_all(Selection& selection, std::span<const uint32_t> items, double budget, double epsilon) {
  uint32_t present = 0, best = 0;  // Gray code: bit k = items[k] is flipped against the start
  double best_seconds = selection.seconds(), best_bytes = selection.bytes();
  for (uint32_t step = 1; step < uint32_t{1} << items.size(); ++step) {
    const auto bit = static_cast<uint32_t>(std::countr_zero(step));
    selection.flip(items[bit]);
    present ^= 1U << bit;
    if (selection.bytes() > budget) continue;
    const double gain = best_seconds - selection.seconds();
    if (best_bytes <= budget && (gain < -epsilon || (gain <= epsilon && selection.bytes() >= best_bytes))) continue;
    best = present;
    best_seconds = selection.seconds();
    best_bytes = selection.bytes();
  }
  for (uint32_t k = 0; k < items.size(); ++k) {
    if (((present ^ best) >> k & 1U) != 0) selection.flip(items[k]);
  }
}

// Fills the gap up to the budget: every choice of neighbours in the tape, window by window, then of a few items from anywhere.
void improve(Selection& selection, const std::vector<uint32_t>& candidates, double budget, double epsilon,
             const RematerialisationSearch& search) {
  const auto size = std::min<size_t>(search.window_items, candidates.size());
  if (size == 0) return;
  uint64_t random = 0x9E3779B97F4A7C15U;  // fixed: the same graph always gets the same plan
  const auto pick = [&](size_t below) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    return static_cast<size_t>((random >> 33U) % below);
  };
  std::vector<uint32_t> mixed = candidates;
  for (uint32_t round = 0; round < search.max_rounds; ++round) {
    const double before = selection.seconds();
    for (size_t first = 0; first < candidates.size(); first += std::max<size_t>(size / 2, 1)) {
      const size_t begin = std::min(first, candidates.size() - size);
      search_all(selection, std::span(candidates).subspan(begin, size), budget, epsilon);
    }
    for (int window = 0; window < 64; ++window) {
      for (size_t k = 0; k < size; ++k) std::swap(mixed[k], mixed[k + pick(mixed.size() - k)]);
      search_all(selection, std::span(mixed).first(size), budget, epsilon);
    }
    if (selection.seconds() >= before - epsilon) return;
  }
}

}  // namespace

RematerialisationSelection::RematerialisationSelection(const RematerialisationProblem& problem)
    : problem_(&problem), recomputed_(problem.items.size(), 0), uses_(problem.buffers.size(), 0) {
  for (size_t b = 0; b < problem.buffers.size(); ++b) {
    uses_[b] = problem.buffers[b].needed ? 1 : 0;
    if (problem.buffers[b].needed) bytes_ += problem.buffers[b].bytes;
  }
}

void RematerialisationSelection::flip(uint32_t item) {
  const Problem::Item& it = problem_->items[item];
  const double sign = recomputed_[item] != 0 ? -1 : 1;
  for (const uint32_t b : problem_->outputs_of(it)) {
    if (uses_[b] > 0) bytes_ -= sign * problem_->buffers[b].bytes;
  }
  for (const uint32_t b : problem_->operands_of(it)) {
    const bool changes = sign > 0 ? uses_[b]++ == 0 : --uses_[b] == 0;
    if (changes && recomputed_[problem_->buffers[b].item] == 0) bytes_ += sign * problem_->buffers[b].bytes;
  }
  seconds_ += sign * it.seconds;
  recomputed_[item] ^= 1U;
}

bool RematerialisationSelection::is_used(uint32_t item) const {
  const std::span<const uint32_t> outputs = problem_->outputs_of(problem_->items[item]);
  return std::any_of(outputs.begin(), outputs.end(), [&](uint32_t b) { return uses_[b] > 0; });
}

bool RematerialisationSelection::is_saved(uint32_t buffer) const {
  return uses_[buffer] > 0 && recomputed_[problem_->buffers[buffer].item] == 0;
}

void RematerialisationSelection::prune() {
  for (uint32_t i = static_cast<uint32_t>(recomputed_.size()); i-- > 0;) {
    if (recomputed_[i] != 0 && !is_used(i)) flip(i);
  }
}

RematerialisationSelection fewest_bytes(const RematerialisationProblem& problem, const std::vector<bool>& pinned) {
  // All times together weigh less than one byte.
  return select(problem,
                cut(problem, 0.5 / std::max(totals(problem).seconds, 1e-300), 1, 0, least_sides(problem), most_sides(problem, pinned)));
}

RematerialisationSelection least_time(const RematerialisationProblem& problem, double budget, const RematerialisationSearch& search) {
  Selection none(problem);
  if (none.bytes() <= budget) return none;
  Selection best = fewest_bytes(problem, {});
  if (best.bytes() > budget) return best;
  const double epsilon = kEpsilon * totals(problem).seconds;
  std::vector<uint32_t> candidates(problem.items.size());
  std::iota(candidates.begin(), candidates.end(), 0U);
  std::erase_if(candidates, [&](uint32_t i) { return problem.items[i].pinned; });
  if (candidates.size() <= search.exact_items) {
    search_all(best, candidates, budget, epsilon);
    best.prune();
    return best;
  }
  // Bisects the price of a byte, on a logarithmic scale: from cheaper than any recomputation to dearer than all together.
  const Totals sum = totals(problem);
  double cheap = sum.seconds, dear = 4 * sum.seconds;
  for (const uint32_t i : candidates) {
    if (problem.items[i].seconds > 0) cheap = std::min(cheap, problem.items[i].seconds);
  }
  cheap /= 4 * sum.bytes;
  Sides low = least_sides(problem), high = most_sides(problem, {});
  for (int step = 0; step < 48 && dear > cheap * (1 + 1e-9) && !(low == high); ++step) {
    const double price = std::sqrt(cheap) * std::sqrt(dear);
    Sides sides = cut(problem, 1, price, kTilt, low, high);
    const Selection selection = select(problem, sides);
    const bool fits = selection.bytes() <= budget;
    if (fits && selection.seconds() < best.seconds()) best = selection;
    (fits ? dear : cheap) = price;
    (fits ? high : low) = std::move(sides);
  }
  improve(best, candidates, budget, epsilon, search);
  best.prune();
  return best;
}

}  // namespace glim
