#include "tests/gpu/spike_program.h"

#include <fmt/format.h>

#include <cmath>
#include <random>

#include "autodiff/gradients.h"
#include "engine/passes/pass_list.h"
#include "ops/add/add.h"
#include "ops/builtin_ops.h"
#include "ops/linear/linear.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/scale/scale.h"

namespace glim::testing {

Spike make_program(std::string name, Graph graph) {
  Spike spike{{std::move(name), std::move(graph), {}, {}}, {}, 0};
  Program& program = spike.program;
  const Graph* const graphs[] = {&program.graph};
  spike.layout = make_leaf_layout(graphs);
  program.schedule = make_schedule(program.graph);
  program.plan = plan_memory(program.graph, program.schedule, spike.layout);
  for (const ScheduleStep& step : program.schedule.steps) spike.flops += program.graph.cost(step.node).flops;
  return spike;
}

Spike make_spike(DType real, const SpikeSizes& s, bool joins_head) {
  Graph g(builtin_ops());
  const ValueId x = g.add_leaf(LeafKind::kInput, "x", {real, {s.rows, s.depth}});
  const ValueId labels = g.add_leaf(LeafKind::kInput, "labels", {DType::kI32, {s.rows}});
  const std::vector<ValueId> parameters{g.add_leaf(LeafKind::kParameter, "w1", {real, {s.width, s.depth}}),
                                        g.add_leaf(LeafKind::kParameter, "g", {real, {s.width}}),
                                        g.add_leaf(LeafKind::kParameter, "w2", {real, {s.vocabulary, s.width}})};
  const ValueId normed = ops::rms_norm(g, ops::linear(g, x, parameters[0]), parameters[1], 1e-5, 1);
  const ops::CrossEntropy head =
      ops::linear_cross_entropy(g, normed, parameters[2], labels, {}, {0.3, 20, -100, ops::Reduction::kMean, s.chunk_rows});
  g.add_output("loss", head.loss);
  g.add_output("token_accuracy", head.token_accuracy);
  g.add_output("num_correct", head.num_correct);
  g.add_output("num_valid", head.num_valid);
  g.add_output("row_loss", head.row_loss);
  const Seeded seeded{head.loss, g.add_leaf(LeafKind::kSeed, "seed", g.type(head.loss))};
  const Result<std::vector<ValueId>> cotangents = gradients(g, {&seeded, 1}, parameters);
  GLIM_CHECK(bool(cotangents), cotangents.error().message);
  for (size_t k = 0; k < parameters.size(); ++k) {
    g.add_output(fmt::format("gradient.{}", g.leaf(parameters[k]).name), (*cotangents)[k]);
    g.add_update(parameters[k], ops::add(g, parameters[k], ops::scale(g, (*cotangents)[k], -s.learning_rate)));
  }
  PassOptions options;
  if (!joins_head) options.disabled = {"fuse_joint"};
  Result<Graph> lowered = run_passes(std::move(g), joint_passes(), {}, options);
  GLIM_CHECK(bool(lowered), lowered.error().message);
  return make_program("spike", *std::move(lowered));
}

Values initial_values(const SpikeSizes& s) {
  std::mt19937_64 random(7);
  // Irwin-Hall: std::normal_distribution is not the same everywhere.
  const auto normal = [&](int64_t count, double deviation) {
    std::vector<double> values(static_cast<size_t>(count));
    for (double& value : values) {
      double sum = -6;
      for (int k = 0; k < 12; ++k) sum += static_cast<double>(random() >> 11) * 0x1p-53;
      value = deviation * sum;
    }
    return values;
  };
  Values values{{"x", normal(s.rows * s.depth, 1)},
                {"w1", normal(s.width * s.depth, 1 / std::sqrt(static_cast<double>(s.depth)))},
                {"g", normal(s.width, 0.1)},
                {"w2", normal(s.vocabulary * s.width, 2 / std::sqrt(static_cast<double>(s.width)))},
                {"seed", {1}}};
  for (int64_t row = 0; row < s.rows; ++row) {
    values["labels"].push_back(row % 7 == 3 ? -100 : static_cast<double>(random() % static_cast<uint64_t>(s.vocabulary)));
  }
  return values;
}

}  // namespace glim::testing
