#include "engine/passes/dce.h"

namespace glim {

Result<Rewritten> dce(const Graph& graph, const PassContext&) {
  std::vector<bool> live(graph.num_nodes(), false);
  for (const NamedValue& output : graph.outputs()) live[graph.producer(output.value).index] = true;
  for (const StateUpdate& update : graph.updates()) live[graph.producer(update.next).index] = true;
  for (auto n = static_cast<uint32_t>(graph.num_nodes()); n-- > 0;) {
    if (!live[n]) continue;
    for (const ValueId v : graph.inputs({n})) {
      if (v.valid()) live[graph.producer(v).index] = true;
    }
  }
  Rewriter rewriter(graph);
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    if (live[n] || graph.is_leaf(NodeId{n})) rewriter.copy({n});
  }
  return std::move(rewriter).finish();
}

}  // namespace glim
