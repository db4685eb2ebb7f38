#pragma once
#include "engine/passes/rematerialise_choice.h"

namespace glim {

// Rewrites a joint graph as choose_rematerialisation() says for context.rematerialise. Nodes that run again are copied, with
// their origin, just before the first node of the backward pass that reads them, their operands first; the backward pass reads the
// copies, the forward pass the originals. Originals that then serve nothing are gone (their values map to the copies). Outputs
// and updates stay bitwise the same. A budget that cannot be met is no error: the report says so.
Result<Rewritten> rematerialise(const Graph& graph, const PassContext& context);

// What context.rematerialise costs and saves on a joint graph before the pass has run.
[[nodiscard]] RematerialisationReport describe_saved(const Graph& graph, const PassContext& context);

}  // namespace glim
