#include "engine/analysis/aliases.h"

namespace glim {

std::vector<AliasFact> find_aliases(const Graph& graph) {
  std::vector<AliasFact> aliases(graph.num_values());
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    if (graph.is_leaf(NodeId{n})) continue;
    const std::vector<const TensorType*> in = graph.input_types({n});
    const InferArgs args{in, graph.attr_words({n}), graph.def(NodeId{n}).user_data};
    for (uint16_t k = 0; k < graph.node({n}).num_outputs; ++k) aliases[graph.output({n}, k).index] = graph.def({n}).memory.alias(args, k);
  }
  return aliases;
}

}  // namespace glim
