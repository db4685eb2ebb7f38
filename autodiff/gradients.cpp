#include "autodiff/gradients.h"

#include <fmt/format.h>

namespace glim {
namespace {

// Values that depend on something in `wrt`: only their cotangents are worth computing.
std::vector<bool> depends_on(const Graph& graph, std::span<const ValueId> wrt) {
  std::vector<bool> depends(graph.num_values(), false);
  for (const ValueId v : wrt) depends[v.index] = true;
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    bool any = false;
    for (const ValueId v : graph.inputs({n})) any = any || (v.valid() && depends[v.index]);
    if (!any) continue;
    for (uint32_t k = 0; k < graph.node({n}).num_outputs; ++k) depends[graph.output({n}, k).index] = true;
  }
  return depends;
}

}  // namespace

Result<std::vector<ValueId>> gradients(Graph& graph, std::span<const Seeded> seeds, std::span<const ValueId> wrt) {
  const auto num_primal_nodes = static_cast<uint32_t>(graph.num_nodes());
  const std::vector<bool> wanted = depends_on(graph, wrt);
  std::vector<ValueId> cotangents(graph.num_values());
  const OpId add = graph.table().with_role(Role::kAdd);
  // The only place where cotangents are added.
  const auto accumulate = [&](ValueId primal, ValueId cotangent) {
    GLIM_CHECK(graph.type(cotangent) == graph.type(primal), fmt::format("a cotangent of type {} for a primal of type {}",
                                                                        to_string(graph.type(cotangent)), to_string(graph.type(primal))));
    ValueId& sum = cotangents[primal.index];
    if (!sum.valid()) {
      sum = cotangent;
      return;
    }
    const ValueId operands[] = {sum, cotangent};
    const Result<NodeId> node = graph.emit(add, operands, std::span<const uint32_t>{});
    GLIM_CHECK(bool(node), node.error().message);
    sum = graph.output(*node);
  };
  for (const Seeded& seeded : seeds) accumulate(seeded.value, seeded.seed);

  const Origin outer = graph.current_origin();
  for (uint32_t index = num_primal_nodes; index-- > 0;) {
    const NodeId n{index};
    const Node node = graph.node(n);
    if (graph.is_leaf(n)) continue;
    bool live = false;
    std::vector<ValueId> out, out_cotangents;
    for (uint32_t k = 0; k < node.num_outputs; ++k) {
      const ValueId v = graph.output(n, k);
      out.push_back(v);
      out_cotangents.push_back(cotangents[v.index]);
      live = live || (cotangents[v.index].valid() && wanted[v.index]);
    }
    if (!live) continue;
    const OpDef& def = graph.def(n);
    if (def.diff != Diff::kHasVjp) {
      return invalid_argument(
          fmt::format("op '{}' at {} has no vjp, but a gradient has to pass through it", def.name, graph.describe_origin(n)));
    }
    // Copies: the pools may grow while the rule runs.
    const std::vector<ValueId> in(graph.inputs(n).begin(), graph.inputs(n).end());
    const std::vector<uint32_t> words(graph.attr_words(n).begin(), graph.attr_words(n).end());
    Origin origin = graph.origin(n);
    origin.is_vjp = true;
    graph.set_origin(origin);
    const std::vector<ValueId> in_cotangents = def.vjp(graph, {words, in, out, out_cotangents, def.user_data});
    GLIM_CHECK(in_cotangents.size() == in.size(), fmt::format("the vjp of '{}' must return one cotangent (or none) per operand", def.name));
    for (size_t k = 0; k < in.size(); ++k) {
      if (in[k].valid() && in_cotangents[k].valid() && wanted[in[k].index]) accumulate(in[k], in_cotangents[k]);
    }
  }
  graph.set_origin(outer);

  std::vector<ValueId> result;
  for (const ValueId v : wrt) result.push_back(cotangents[v.index]);
  return result;
}

}  // namespace glim
