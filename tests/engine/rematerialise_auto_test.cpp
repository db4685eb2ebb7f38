// Rematerialise::kAuto against exhaustive search on small graphs, and against a lower bound on big ones.
#include "engine/passes/rematerialise.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "engine/analysis/min_cut.h"
#include "tests/engine/rematerialise_toy.h"

namespace glim {
namespace {

using namespace rematerialise_toy;

// Exhaustive search, written on the graph itself
struct Outcome {
  double seconds = 0, bytes = 0;
};
struct Exhaustive {
  const Graph& g;
  uint32_t first_backward;
  std::vector<NodeId> nodes;  // forward nodes that may run again
  ValueId buffer(ValueId v) const {
    while (g.def(g.producer(v)).name == "view") v = g.inputs(g.producer(v))[0];
    return v;
  }
  Outcome evaluate_choice(uint32_t mask) const {
    Outcome outcome;
    std::vector<ValueId> open;
    std::vector<bool> seen(g.num_values(), false), ran(g.num_nodes(), false);
    for (uint32_t n = first_backward; n < g.num_nodes(); ++n) open.insert(open.end(), g.inputs({n}).begin(), g.inputs({n}).end());
    while (!open.empty()) {
      const ValueId v = buffer(open.back());
      open.pop_back();
      const NodeId n = g.producer(v);
      if (g.is_leaf(v) || n.index >= first_backward || seen[v.index]) continue;
      seen[v.index] = true;
      const auto place = static_cast<size_t>(std::find(nodes.begin(), nodes.end(), n) - nodes.begin());
      if (place == nodes.size() || (mask >> place & 1U) == 0) {
        outcome.bytes += static_cast<double>(g.type(v).bytes());
      } else if (!ran[n.index]) {
        ran[n.index] = true;
        outcome.seconds += g.attrs<WorkAttrs>(n).flops;
        open.insert(open.end(), g.inputs(n).begin(), g.inputs(n).end());
      }
    }
    return outcome;
  }
};

// kAuto with `search` against the optimum on small graphs; {worst, mean} relative excess of recompute time.
std::pair<double, double> compare(const RematerialisationSearch& search, int num_graphs) {
  std::mt19937 rng(7);
  double worst = 0, sum = 0;
  int compared = 0;
  while (compared < num_graphs) {
    const RandomGraph random = random_graph(rng, 5 + static_cast<int>(rng() % 8), false);
    Exhaustive exhaustive{random.g, random.first_backward, {}};
    const std::vector<bool> never = boundaries(random.g);
    for (uint32_t n = 0; n < random.first_backward; ++n) {
      if (random.g.def({n}).name == "work" && !never[n]) exhaustive.nodes.push_back({n});
    }
    const double all = exhaustive.evaluate_choice(0).bytes;
    const double budget = std::floor(all * static_cast<double>(1 + rng() % 9) / 10);
    Outcome best{INFINITY, 0};
    double fewest = INFINITY;
    for (uint32_t mask = 0; mask < 1U << exhaustive.nodes.size(); ++mask) {
      const Outcome outcome = exhaustive.evaluate_choice(mask);
      fewest = std::min(fewest, outcome.bytes);
      if (outcome.bytes <= budget && outcome.seconds < best.seconds) best = outcome;
    }
    const RematerialisationReport report =
        choose_rematerialisation(random.g, context(Rematerialise::kAuto, static_cast<size_t>(budget)), search).report;
    EXPECT_EQ(report.within_budget, std::isfinite(best.seconds));
    if (!report.within_budget) {
      EXPECT_EQ(report.saved_bytes, fewest);
      continue;
    }
    EXPECT_LE(report.saved_bytes, budget);
    EXPECT_GE(report.recompute_seconds, best.seconds - 1e-6);
    if (best.seconds == 0) continue;
    const double gap = report.recompute_seconds / best.seconds - 1;
    worst = std::max(worst, gap);
    sum += gap;
    ++compared;
  }
  return {worst, sum / num_graphs};
}

TEST(RematerialiseAuto, AutoIsExactOnSmallGraphs) {
  const auto [worst, mean] = compare({}, 300);
  fmt::print("exact: worst {:.3f} %, mean {:.3f} % over the optimum\n", 100 * worst, 100 * mean);
  EXPECT_LE(worst, 1e-9);
}

// The search for big graphs, forced onto small ones with windows of a third of the candidates.
TEST(RematerialiseAuto, AutoSearchIsWithinFivePerCent) {
  RematerialisationSearch search;
  search.exact_items = 0;
  search.window_items = 4;
  const auto [worst, mean] = compare(search, 300);
  fmt::print("search: worst {:.3f} %, mean {:.3f} % over the optimum\n", 100 * worst, 100 * mean);
  EXPECT_LE(worst, 0.05);
}

// A bound that no choice within the budget can beat: max over prices of min(time + price * bytes) - price * budget.
double lower_bound(const Graph& g, double budget) {
  const RematerialisationProblem problem =
      make_rematerialisation_problem(g, find_backward_region(g), find_buffers(g), {1, 1}, boundaries(g));
  const auto num_items = static_cast<uint32_t>(problem.items.size()), num_buffers = static_cast<uint32_t>(problem.buffers.size());
  const auto at = [&](double price) {
    MinCut network(2 + num_items + num_buffers);
    for (uint32_t i = 0; i < num_items; ++i) {
      network.add_arc(0, 2 + i, problem.items[i].pinned ? MinCut::kInfinite : std::llround(problem.items[i].seconds * 1e6));
      for (const uint32_t b : problem.outputs_of(problem.items[i]))
        network.add_arc(2 + i, 2 + num_items + b, std::llround(price * problem.buffers[b].bytes * 1e6));
      for (const uint32_t b : problem.operands_of(problem.items[i])) network.add_arc(2 + num_items + b, 2 + i, MinCut::kInfinite);
    }
    for (uint32_t b = 0; b < num_buffers; ++b) {
      if (problem.buffers[b].needed) network.add_arc(2 + num_items + b, 1, MinCut::kInfinite);
    }
    const std::vector<bool> sink_side = network.solve(0, 1);
    double value = -price * budget;
    for (uint32_t i = 0; i < num_items; ++i) value += sink_side[2 + i] ? problem.items[i].seconds : 0;
    for (uint32_t b = 0; b < num_buffers; ++b)
      value += sink_side[2 + num_items + b] && !sink_side[2 + problem.buffers[b].item] ? price * problem.buffers[b].bytes : 0;
    return value;
  };
  double low = 1e-4, high = 1e3;
  for (int step = 0; step < 40; ++step) {  // concave in the price
    const double a = low * std::cbrt(high / low), b = high / std::cbrt(high / low);
    (at(a) < at(b) ? low : high) = at(a) < at(b) ? a : b;
  }
  return at(std::sqrt(low * high));
}

TEST(RematerialiseAuto, AutoIsFastAndNearTheBoundOnFiftyTwoLayers) {
  for (const double spread : {0.0, 0.05}) {
    const Graph g = layered(52, 40, spread);
    const double all = describe_saved(g, context(Rematerialise::kNone)).saved_bytes;
    for (const double part : {0.1, 0.3, 0.5, 0.8}) {
      const auto budget = static_cast<size_t>(all * part);
      const auto start = std::chrono::steady_clock::now();
      const Rewritten rewritten = run(g, Rematerialise::kAuto, budget);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      const RematerialisationReport report = describe_saved(g, context(Rematerialise::kAuto, budget));
      const double bound = lower_bound(g, static_cast<double>(budget));
      fmt::print(
          "spread {:.2f} budget {:.0f} %: pass {:.3f} s, bytes {:.2f} % of the budget, time {:.0f} >= {:.0f}, at most {:.2f} % over the "
          "optimum\n",
          spread, 100 * part, seconds, 100 * report.saved_bytes / static_cast<double>(budget), report.recompute_seconds, bound,
          100 * (report.recompute_seconds / bound - 1));
      EXPECT_TRUE(report.within_budget);
      EXPECT_LE(report.recompute_seconds, 1.01 * bound);
      EXPECT_EQ(evaluate(rewritten.graph), evaluate(g));
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
      EXPECT_LT(seconds, 0.2);
#endif
    }
  }
}

}  // namespace
}  // namespace glim
