#pragma once
#include <vector>

#include "engine/graph.h"

namespace glim {

// Where each value's bytes may lie, by value: Graph::alias asked once per output. (A node over every parameter has thousands
// of operands, and asking assembles their types each time.)
[[nodiscard]] std::vector<AliasFact> find_aliases(const Graph& graph);

}  // namespace glim
