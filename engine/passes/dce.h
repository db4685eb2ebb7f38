#pragma once
#include "engine/pass.h"

namespace glim {

// Dead code elimination: drops every node that no output and no update is computed from. Leaves stay, used or not: the caller
// binds them by name, and a state exists whether this program reads it or not.
Result<Rewritten> dce(const Graph& graph, const PassContext& context);

}  // namespace glim
