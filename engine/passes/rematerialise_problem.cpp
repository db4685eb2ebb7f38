#include "engine/passes/rematerialise_problem.h"

#include <algorithm>

#include "engine/analysis/aliases.h"

namespace glim {
namespace {

// Element-wise ops and norms do a few FLOPs per byte; products and attention do hundreds, small ones tens.
constexpr double kExpensiveFlopsPerByte = 10;

bool is_expensive(const Graph& graph, NodeId n, const Cost& cost) {
  const Role role = graph.def(n).role;
  return role == Role::kLinear || role == Role::kMatmul || cost.flops > kExpensiveFlopsPerByte * (cost.bytes_read + cost.bytes_written);
}

// Nodes that must not run again, whatever that would save.
std::vector<bool> find_pinned(const Graph& graph, std::span<const ValueId> buffer_of) {
  std::vector<bool> pinned(graph.num_nodes(), false), overwritten(graph.num_values(), false), volatile_value(graph.num_values(), false);
  for (const StateUpdate& update : graph.updates()) volatile_value[update.state.index] = true;
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    for (uint32_t k = 0; k < graph.node({n}).num_outputs; ++k) {
      const AliasFact fact = graph.alias({n}, static_cast<uint16_t>(k));
      if (fact.kind != AliasKind::kMust) continue;
      pinned[n] = true;
      if (const ValueId target = graph.inputs({n})[fact.operand]; target.valid()) overwritten[buffer_of[target.index].index] = true;
    }
  }
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    if (graph.is_leaf(NodeId{n})) continue;
    bool depends = false;
    for (const ValueId v : graph.inputs({n})) {
      if (!v.valid()) continue;
      depends = depends || volatile_value[v.index];
      if (overwritten[buffer_of[v.index].index]) pinned[n] = true;
    }
    if (depends || graph.def(NodeId{n}).role == Role::kCollective) pinned[n] = true;
    for (uint32_t k = 0; depends && k < graph.node({n}).num_outputs; ++k) volatile_value[graph.output({n}, k).index] = true;
  }
  return pinned;
}

// Bytes that saving each buffer takes: none for leaves, for accumulations into leaves, and for what is alive at the end anyway.
std::vector<double> saving_bytes(const Graph& graph, std::span<const ValueId> buffer_of) {
  std::vector<double> bytes(graph.num_values(), 0);
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    if (graph.is_leaf(NodeId{n})) continue;
    for (uint32_t k = 0; k < graph.node({n}).num_outputs; ++k) {
      const ValueId v = graph.output({n}, k);
      const AliasFact fact = graph.alias({n}, static_cast<uint16_t>(k));
      const ValueId target = fact.kind == AliasKind::kMust ? graph.inputs({n})[fact.operand] : ValueId{};
      bytes[v.index] = target.valid() ? bytes[buffer_of[target.index].index] : static_cast<double>(graph.type(v).bytes());
    }
  }
  for (const NamedValue& output : graph.outputs()) bytes[buffer_of[output.value.index].index] = 0;
  for (const StateUpdate& update : graph.updates()) bytes[buffer_of[update.next.index].index] = 0;
  return bytes;
}

}  // namespace

std::vector<ValueId> find_buffers(const Graph& graph) {
  std::vector<ValueId> buffer_of(graph.num_values());
  const std::vector<AliasFact> aliases = find_aliases(graph);
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    const uint32_t num_outputs = graph.node({n}).num_outputs;
    const std::span<const ValueId> in = graph.inputs({n});
    // A node that only in part makes views has a kernel that must run; its outputs count in full.
    bool all_views = !graph.is_leaf(NodeId{n});
    for (uint32_t k = 0; all_views && k < num_outputs; ++k) {
      const AliasFact fact = aliases[graph.output({n}, k).index];
      all_views = fact.kind == AliasKind::kView && in[fact.operand].valid();
    }
    // Weights that are packed lie side by side in their arena: their assembly takes no bytes.
    const bool of_leaves = !in.empty() && aliases[graph.output({n}).index].kind == AliasKind::kAssemble &&
                           std::all_of(in.begin(), in.end(), [&](ValueId v) { return v.valid() && graph.is_leaf(v); });
    for (uint32_t k = 0; k < num_outputs; ++k) {
      const ValueId v = graph.output({n}, k);
      buffer_of[v.index] = all_views ? buffer_of[in[aliases[v.index].operand].index] : of_leaves ? in[0] : v;
    }
  }
  return buffer_of;
}

RematerialisationProblem make_rematerialisation_problem(const Graph& graph, const BackwardRegion& backward,
                                                        std::span<const ValueId> buffer_of, const CostModel& cost_model,
                                                        const std::vector<bool>& never_again) {
  const auto num_nodes = static_cast<uint32_t>(graph.num_nodes());
  const std::vector<double> bytes = saving_bytes(graph, buffer_of);
  std::vector<bool> pinned = find_pinned(graph, buffer_of);
  for (uint32_t n = 0; n < num_nodes; ++n) pinned[n] = pinned[n] || never_again[n];
  // Buffers of forward nodes that the backward pass reads, and then those that it would read if items ran again.
  std::vector<bool> needed(graph.num_values(), false);
  bool first = true;
  const auto is_forward = [&](ValueId buffer) { return !graph.is_leaf(buffer) && !backward.contains(graph.producer(buffer)); };
  for (uint32_t n = 0; n < num_nodes; ++n) {
    if (!backward.nodes[n]) continue;
    for (const ValueId v : graph.inputs({n})) {
      if (!v.valid() || !is_forward(buffer_of[v.index])) continue;
      needed[buffer_of[v.index].index] = true;
      if (first) pinned[graph.producer(buffer_of[v.index]).index] = true;
    }
    first = false;
  }
  std::vector<bool> relevant = needed, is_item(num_nodes, false);
  for (uint32_t n = num_nodes; n-- > 0;) {
    bool takes_bytes = false;
    for (uint32_t k = 0; k < graph.node({n}).num_outputs; ++k) {
      const ValueId v = graph.output({n}, k);
      is_item[n] = is_item[n] || relevant[v.index];
      takes_bytes = takes_bytes || (relevant[v.index] && bytes[v.index] > 0);
    }
    if (!is_item[n]) continue;
    if (!takes_bytes) pinned[n] = true;
    for (const ValueId v : graph.inputs({n})) {
      if (!pinned[n] && v.valid() && is_forward(buffer_of[v.index])) relevant[buffer_of[v.index].index] = true;
    }
  }

  RematerialisationProblem problem;
  std::vector<uint32_t> number(graph.num_values(), 0);
  for (uint32_t n = 0; n < num_nodes; ++n) {
    if (!is_item[n]) continue;
    const Cost cost = graph.cost({n});
    RematerialisationProblem::Item item{{n}, cost_model.seconds(cost), cost.flops, pinned[n], is_expensive(graph, {n}, cost)};
    item.first_operand = static_cast<uint32_t>(problem.operands.size());
    for (const ValueId v : graph.inputs({n})) {
      if (pinned[n] || !v.valid() || !is_forward(buffer_of[v.index])) continue;
      const uint32_t buffer = number[buffer_of[v.index].index];
      if (std::find(problem.operands.begin() + item.first_operand, problem.operands.end(), buffer) == problem.operands.end())
        problem.operands.push_back(buffer);
    }
    item.end_operand = static_cast<uint32_t>(problem.operands.size());
    item.first_output = static_cast<uint32_t>(problem.outputs.size());
    for (uint32_t k = 0; k < graph.node({n}).num_outputs; ++k) {
      const ValueId v = graph.output({n}, k);
      if (!relevant[v.index]) continue;
      number[v.index] = static_cast<uint32_t>(problem.buffers.size());
      problem.outputs.push_back(number[v.index]);
      problem.buffers.push_back({v, bytes[v.index], static_cast<uint32_t>(problem.items.size()), needed[v.index]});
    }
    item.end_output = static_cast<uint32_t>(problem.outputs.size());
    problem.items.push_back(item);
  }
  return problem;
}

}  // namespace glim
