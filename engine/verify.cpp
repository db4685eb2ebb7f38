#include "engine/verify.h"

#include <fmt/format.h>

#include <unordered_set>

namespace glim {
namespace {

Error violation(const Graph& graph, NodeId n, const std::string& what) {
  const std::string origin = graph.describe_origin(n);
  return invalid_argument(fmt::format("node {} ({}{}{}): {}", n.index, graph.def(n).name, origin.empty() ? "" : ", ", origin, what));
}

Status verify_leaf(const Graph& graph, NodeId n) {
  if (graph.node(n).num_inputs != 0 || graph.node(n).num_outputs != 1) return violation(graph, n, "a leaf has one output and no operand");
  const uint32_t row = graph.attr_words(n)[0];
  if (row >= graph.leaves().size() || graph.leaves()[row].value != graph.output(n))
    return violation(graph, n, "the table of leaves does not list it");
  return ok();
}

Status verify_operands(const Graph& graph, NodeId n) {
  const std::span<const OperandSpec> specs = graph.def(n).operands;
  const std::span<const ValueId> in = graph.inputs(n);
  const bool variadic = !specs.empty() && specs.back().variadic;
  const size_t fixed = specs.size() - (variadic ? 1 : 0);
  if (in.size() < fixed || (in.size() > fixed && !variadic))
    return violation(graph, n, fmt::format("{} operands, expected {}", in.size(), fixed));
  for (size_t k = 0; k < in.size(); ++k) {
    if (!in[k].valid()) {
      if (k >= fixed || !specs[k].optional) return violation(graph, n, fmt::format("operand {} is absent but not optional", k));
    } else if (in[k].index >= graph.output(n).index) {
      return violation(
          graph, n, fmt::format("operand {} is %{}, which does not precede the node's output %{}", k, in[k].index, graph.output(n).index));
    }
  }
  return ok();
}

Status verify_attrs(const Graph& graph, NodeId n) {
  const std::span<const AttrSpec> specs = graph.def(n).attrs;
  for (size_t k = 0; k < specs.size(); ++k) {
    if (specs[k].kind == AttrKind::kReal || specs[k].kind == AttrKind::kInteger) continue;
    const int64_t value = integer_at(graph.attr_words(n), k);
    const auto limit = specs[k].kind == AttrKind::kBool ? int64_t{2} : static_cast<int64_t>(specs[k].choices.size());
    if (value < 0 || value >= limit)
      return violation(graph, n, fmt::format("attribute '{}' is {}, outside [0, {})", specs[k].name, value, limit));
  }
  return ok();
}

Status verify_types(const Graph& graph, NodeId n) {
  const std::vector<const TensorType*> in = graph.input_types(n);
  const Result<Types> types = graph.def(n).infer({in, graph.attr_words(n), graph.def(n).user_data});
  if (!types) return violation(graph, n, types.error().message);
  if (types->size() != graph.node(n).num_outputs) {
    return violation(graph, n, fmt::format("{} outputs, but infer says {}", graph.node(n).num_outputs, types->size()));
  }
  for (uint32_t k = 0; k < types->size(); ++k) {
    const TensorType& type = graph.type(graph.output(n, k));
    if (type != (*types)[k])
      return violation(graph, n, fmt::format("output {} is {}, but infer says {}", k, to_string(type), to_string((*types)[k])));
  }
  return ok();
}

Status verify_nodes(const Graph& graph) {
  uint32_t num_values = 0;
  for (uint32_t index = 0; index < graph.num_nodes(); ++index) {
    const NodeId n{index};
    const Node node = graph.node(n);
    if (node.op.index >= graph.table().size()) return invalid_argument(fmt::format("node {}: no op of the table", index));
    if (node.outputs.index != num_values || node.num_outputs == 0 || graph.num_values() - num_values < node.num_outputs) {
      return violation(graph, n, "its outputs are not the next values of the tape");
    }
    for (uint32_t k = 0; k < node.num_outputs; ++k) {
      if (graph.producer(graph.output(n, k)) != n)
        return violation(graph, n, fmt::format("the producer table does not list it for %{}", num_values + k));
    }
    num_values += node.num_outputs;
    if (graph.is_leaf(n)) {
      GLIM_TRY(verify_leaf(graph, n));
    } else {
      GLIM_TRY(verify_operands(graph, n));  // first: the other two read what the operands name
      GLIM_TRY(verify_attrs(graph, n));
      GLIM_TRY(verify_types(graph, n));
    }
  }
  if (num_values != graph.num_values())
    return invalid_argument(fmt::format("{} values, but the nodes have {} outputs", graph.num_values(), num_values));
  return ok();
}

}  // namespace

Status verify(const Graph& graph) {
  GLIM_TRY(verify_nodes(graph));
  const auto exists = [&](ValueId v) { return v.valid() && v.index < graph.num_values(); };
  std::unordered_set<std::string_view> leaf_names, output_names;
  for (const Leaf& leaf : graph.leaves()) {
    if (!exists(leaf.value) || !graph.is_leaf(leaf.value)) return invalid_argument(fmt::format("leaf '{}' is no leaf node", leaf.name));
    if (!leaf_names.insert(leaf.name).second) return invalid_argument(fmt::format("two leaves are named '{}'", leaf.name));
  }
  for (const NamedValue& output : graph.outputs()) {
    if (!exists(output.value)) return invalid_argument(fmt::format("output '{}' is no value of the graph", output.name));
    if (!output_names.insert(output.name).second) return invalid_argument(fmt::format("two outputs are named '{}'", output.name));
  }
  std::unordered_set<uint32_t> updated;
  for (const StateUpdate& update : graph.updates()) {
    if (!exists(update.state) || !exists(update.next)) return invalid_argument("an update names no value of the graph");
    if (!graph.is_leaf(update.state) || !is_state(graph.leaf(update.state).kind)) {
      return invalid_argument(fmt::format("an update of %{}, which is no state", update.state.index));
    }
    const std::string& name = graph.leaf(update.state).name;
    if (graph.type(update.state) != graph.type(update.next)) {
      return invalid_argument(fmt::format("the update of '{}' changes its type from {} to {}", name, to_string(graph.type(update.state)),
                                          to_string(graph.type(update.next))));
    }
    if (!updated.insert(update.state.index).second) return invalid_argument(fmt::format("'{}' is updated twice", name));
  }
  return ok();
}

}  // namespace glim
