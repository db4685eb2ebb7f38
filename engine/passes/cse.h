#pragma once
#include "engine/pass.h"

namespace glim {

// Common subexpression elimination: nodes of one op with the same operands and the same attribute words become one. Not merged:
// leaves, nodes that update a buffer (kMust: each has its own buffer to write), and collectives (every rank must meet each one).
Result<Rewritten> cse(const Graph& graph, const PassContext& context);

}  // namespace glim
