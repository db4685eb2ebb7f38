#include "engine/analysis/consumers.h"

namespace glim {

Consumers count_consumers(const Graph& graph) {
  Consumers consumers{std::vector<uint32_t>(graph.num_values(), 0)};
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    for (const ValueId v : graph.inputs({n})) {
      if (v.valid()) ++consumers.count[v.index];
    }
  }
  for (const NamedValue& output : graph.outputs()) ++consumers.count[output.value.index];
  for (const StateUpdate& update : graph.updates()) ++consumers.count[update.next.index];
  return consumers;
}

Readers find_readers(const Graph& graph) {
  Readers readers{std::vector<std::vector<NodeId>>(graph.num_values())};
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    for (const ValueId v : graph.inputs({n})) {
      if (!v.valid()) continue;
      std::vector<NodeId>& list = readers.nodes[v.index];
      if (list.empty() || list.back() != NodeId{n}) list.push_back({n});
    }
  }
  return readers;
}

}  // namespace glim
