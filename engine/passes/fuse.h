#pragma once
#include "engine/analysis/consumers.h"
#include "engine/pass.h"

namespace glim {

// What a fusion pattern (OpDef::fusions) looks at. `root` is a node of the pattern's root op.
struct FuseArgs {
  const Graph& graph;
  NodeId root;
  const Consumers& consumers;
  // The producer of `v` if it is of the op called `op` and `v` has exactly one consumer (graph outputs and updates count as one).
  [[nodiscard]] std::optional<NodeId> sole_producer(ValueId v, std::string_view op) const;
  // Whether `v` is computed from an output of `n` (directly or not).
  [[nodiscard]] bool depends_on(ValueId v, NodeId n) const;
  // Whether a product may add into `v` where it lies: a main gradient that nothing else reads, or the main gradients of packed weights side
  // by side.
  [[nodiscard]] bool is_main_gradient(ValueId v) const;
};

// Applies the fusion patterns of all ops until none matches: those for the forward graph, or those for the joint one.
// The driver refuses a match whose interior values have consumers outside of the match or are graph outputs.
Result<Rewritten> fuse_forward(const Graph& graph, const PassContext& context);
Result<Rewritten> fuse_joint(const Graph& graph, const PassContext& context);

}  // namespace glim
