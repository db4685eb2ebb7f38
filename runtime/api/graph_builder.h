#pragma once
#include "engine/graph.h"
#include "runtime/api/boundary.h"

namespace glim::v0 {

// What a GraphBuilder points to while a gradient rule runs.
struct BuilderState {
  Graph* graph;
  std::optional<glim::Error> error;  // the first one
};

}  // namespace glim::v0
