#pragma once
#include "ops/define.h"

namespace glim::ops {

// a + b, of equal types.
inline ValueId add(Graph& g, ValueId a, ValueId b) { return emit_value(g, "add", {a, b}); }

}  // namespace glim::ops

namespace glim::cuda {
void add(const KernelArgs& k);
}  // namespace glim::cuda
