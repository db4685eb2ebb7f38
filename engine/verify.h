#pragma once
#include "engine/graph.h"

namespace glim {

// The laws that every graph keeps: tape order, operand counts, types equal to what infer says, outputs and updates that exist,
// one update per state, unique leaf and output names. Run after every pass.
[[nodiscard]] Status verify(const Graph& graph);

}  // namespace glim
