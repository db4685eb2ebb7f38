#include "autodiff/training.h"

#include <fmt/format.h>

#include "autodiff/gradients.h"
#include "ops/adamw/adamw.h"
#include "ops/add/add.h"
#include "ops/cast/cast.h"
#include "ops/clip/clip.h"
#include "ops/fill/fill.h"

namespace glim {

std::string gradient_name(std::string_view parameter) { return fmt::format("gradient.{}", parameter); }
std::string moment_name(std::string_view parameter, int k) { return fmt::format("adamw.{}.{}", k == 0 ? "m" : "v", parameter); }
std::string master_name(std::string_view parameter) { return fmt::format("adamw.master.{}", parameter); }

Status append_backward(Graph& graph, const Backward& options) {
  const ValueId loss = graph.find_output(options.loss);
  if (!loss.valid()) return invalid_argument(fmt::format("the model has no output '{}' to train on", options.loss));
  std::vector<ValueId> parameters;
  for (const Leaf& leaf : graph.leaves()) {
    if (leaf.kind == LeafKind::kParameter && (!options.trains || options.trains(leaf.name))) parameters.push_back(leaf.value);
  }
  if (parameters.empty()) return invalid_argument("the model has no parameter to train");
  const Origin outer = graph.current_origin();
  graph.set_origin(graph.origin(graph.producer(loss)));
  const Seeded seeded{loss, graph.add_leaf(LeafKind::kSeed, kSeedName, graph.type(loss))};
  GLIM_ASSIGN(const std::vector<ValueId> cotangents, gradients(graph, {&seeded, 1}, parameters));
  for (size_t k = 0; k < parameters.size(); ++k) {
    Origin origin = graph.origin(graph.producer(parameters[k]));
    origin.is_vjp = true;
    graph.set_origin(origin);
    TensorType type = graph.type(parameters[k]);
    type.dtype = accumulation_dtype(type.dtype);
    const ValueId main = graph.add_leaf(LeafKind::kGradient, gradient_name(graph.leaf(parameters[k]).name), type);
    if (!cotangents[k].valid()) {
      if (!options.accumulate) graph.add_update(main, ops::fill(graph, type, 0.0));
      continue;
    }
    const ValueId wide = ops::cast(graph, cotangents[k], type.dtype);
    graph.add_update(main, options.accumulate ? ops::add(graph, main, wide) : wide);
  }
  graph.set_origin(outer);
  return ok();
}

Graph make_update_program(const OpTable& table, const std::vector<TrainedParameter>& parameters, const AdamWOptions& options) {
  Graph graph(table);
  const DType acc = accumulation_dtype(parameters.front().type.dtype);
  const bool is_narrow = parameters.front().type.dtype != acc, has_master = is_narrow && options.master_weights;
  const ValueId learning_rate = graph.add_leaf(LeafKind::kInput, kLearningRateName, {acc, {1}});
  const ValueId step = graph.add_leaf(LeafKind::kOptimizer, kStepName, {acc, {1}});
  const auto add_leaves = [&](LeafKind kind, auto name) {
    std::vector<ValueId> leaves;
    for (const TrainedParameter& parameter : parameters) {
      const DType dtype = kind == LeafKind::kParameter ? parameter.type.dtype : acc;
      leaves.push_back(graph.add_leaf(kind, name(parameter.name), {dtype, parameter.type.shape}));
    }
    return leaves;
  };
  std::vector<std::vector<ValueId>> state;  // param, [master,] gradient, m, v
  state.push_back(add_leaves(LeafKind::kParameter, [](const std::string& name) { return name; }));
  if (has_master) state.push_back(add_leaves(LeafKind::kOptimizer, [](const std::string& name) { return master_name(name); }));
  state.push_back(add_leaves(LeafKind::kGradient, [](const std::string& name) { return gradient_name(name); }));
  for (const int k : {0, 1})
    state.push_back(add_leaves(LeafKind::kOptimizer, [k](const std::string& name) { return moment_name(name, k); }));

  const auto emit = [&](std::string_view op, const std::vector<ValueId>& in, const auto& attrs) {
    const Result<NodeId> node = graph.emit(*table.find(op), in, attrs);
    GLIM_CHECK(bool(node), node.error().message);
    return *node;
  };
  const size_t gradient_row = has_master ? 2 : 1;
  const ValueId sum = graph.output(emit("sum_of_squares", state[gradient_row], ops::NoAttrs{}));
  const NodeId clip = emit("clip", {sum}, ops::ClipAttrs{options.max_norm});
  const ValueId scale = graph.output(clip, 0), norm = graph.output(clip, 1), finite = graph.output(clip, 2);
  std::vector<ValueId> operands{learning_rate, step, scale, finite};
  for (size_t k = 0; k < parameters.size(); ++k) {
    for (const std::vector<ValueId>& row : state) operands.push_back(row[k]);
  }
  const NodeId adamw = emit("adamw", operands,
                            ops::AdamwAttrs{options.beta1, options.beta2, options.eps, options.weight_decay, has_master ? 1 : 0,
                                            is_narrow && !has_master ? 1 : 0});
  uint32_t output = 0;
  graph.add_update(step, graph.output(adamw, output++));
  for (size_t k = 0; k < parameters.size(); ++k) {
    for (size_t row = 0; row < state.size(); ++row) {
      if (row != gradient_row) graph.add_update(state[row][k], graph.output(adamw, output++));
    }
  }
  graph.add_output("gradient_norm", norm);
  graph.add_output("finite", finite);
  return graph;
}

}  // namespace glim
