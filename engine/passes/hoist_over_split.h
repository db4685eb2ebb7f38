#pragma once
#include "engine/pass.h"

namespace glim {

// What happens alike to every part of a row split happens once to the whole:
//   cast(split(x)_i), i = 1..n          ->  split(cast(x))_i
//   add(g_i, split(x)_i), i = 1..n      ->  split(add(concat(g_1, .., g_n), x))_i     g_i: main gradients that nothing else reads
// Law: axis 0; every part has exactly this one reader; casts have the same attributes.
//
// Why: x is the weight gradient of packed linears. The product that makes it can then come out in the main gradients' type, and add into
// them where they lie: leaf layout puts the g_i side by side, so the concat is a view and the parts are the next values in place.
Result<Rewritten> hoist_over_split(const Graph& graph, const PassContext& context);

}  // namespace glim
