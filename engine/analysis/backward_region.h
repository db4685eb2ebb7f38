#pragma once
#include <vector>

#include "engine/graph.h"

namespace glim {

// The backward pass of a joint graph, found from its structure alone: the nodes that depend on a leaf of kind kSeed, and those
// that stand after the first of them and serve nothing else (what a vjp rule builds from primals only, recomputed primals).
// Leaves belong to neither pass. Empty for a graph without a seed.
struct BackwardRegion {
  std::vector<bool> nodes;
  [[nodiscard]] bool contains(NodeId n) const { return nodes[n.index]; }
};
[[nodiscard]] BackwardRegion find_backward_region(const Graph& graph);

}  // namespace glim
