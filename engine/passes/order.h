#pragma once
#include "engine/pass.h"

namespace glim {

// Puts the tape into schedule order (engine/schedule.h). Fusion leaves an accumulation where its addition stood, which is at the end
// of the tape, but it wants to run where its operands are made.
Result<Rewritten> order(const Graph& graph, const PassContext& context);

}  // namespace glim
