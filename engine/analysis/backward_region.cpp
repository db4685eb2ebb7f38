#include "engine/analysis/backward_region.h"

namespace glim {

BackwardRegion find_backward_region(const Graph& graph) {
  const auto num_nodes = static_cast<uint32_t>(graph.num_nodes());
  std::vector<bool> seeded(graph.num_values(), false);
  for (const Leaf& leaf : graph.leaves()) seeded[leaf.value.index] = leaf.kind == LeafKind::kSeed;
  BackwardRegion region{std::vector<bool>(num_nodes, false)};
  uint32_t first = num_nodes;
  for (uint32_t n = 0; n < num_nodes; ++n) {
    bool depends = false;
    for (const ValueId v : graph.inputs({n})) depends = depends || (v.valid() && seeded[v.index]);
    if (!depends) continue;
    if (first == num_nodes) first = n;
    region.nodes[n] = true;
    for (uint32_t k = 0; k < graph.node({n}).num_outputs; ++k) seeded[graph.output({n}, k).index] = true;
  }

  std::vector<bool> read_inside(graph.num_values(), false), read_outside(graph.num_values(), false);
  for (const NamedValue& output : graph.outputs()) read_outside[output.value.index] = true;
  for (const StateUpdate& update : graph.updates()) read_outside[update.next.index] = true;
  for (uint32_t n = num_nodes; n-- > first;) {
    if (graph.is_leaf(NodeId{n})) continue;
    if (!region.nodes[n]) {
      bool inside = false, outside = false;
      for (uint32_t k = 0; k < graph.node({n}).num_outputs; ++k) {
        inside = inside || read_inside[graph.output({n}, k).index];
        outside = outside || read_outside[graph.output({n}, k).index];
      }
      region.nodes[n] = inside && !outside;
    }
    for (const ValueId v : graph.inputs({n})) {
      if (v.valid()) (region.nodes[n] ? read_inside : read_outside)[v.index] = true;
    }
  }
  return region;
}

}  // namespace glim
