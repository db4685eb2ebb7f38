#pragma once
#include <vector>

#include "engine/graph.h"

namespace glim {

// How often each value is read: by nodes (every operand position counts), as a graph output, or as the next value of a state.
struct Consumers {
  std::vector<uint32_t> count;
  uint32_t operator[](ValueId v) const { return count[v.index]; }
};
[[nodiscard]] Consumers count_consumers(const Graph& graph);

// Which nodes read each value, in tape order (a node is listed once per value).
struct Readers {
  std::vector<std::vector<NodeId>> nodes;
  const std::vector<NodeId>& operator[](ValueId v) const { return nodes[v.index]; }
};
[[nodiscard]] Readers find_readers(const Graph& graph);

}  // namespace glim
