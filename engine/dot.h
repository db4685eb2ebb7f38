#pragma once
#include <string>

#include "engine/graph.h"

namespace glim {

// The graph in Graphviz's DOT language: nodes in clusters by origin path (stack instance), parameters and inputs as ellipses, edges
// labelled with types. Backward nodes are shaded.
[[nodiscard]] std::string to_dot(const Graph& graph);

}  // namespace glim
