#pragma once
#include "ops/define.h"

namespace glim::ops {

// `in` in a buffer of its own (any dtype).
inline ValueId copy(Graph& g, ValueId in) { return emit_value(g, "copy", {in}); }

}  // namespace glim::ops

namespace glim::cuda {
void copy(const KernelArgs& k);
}  // namespace glim::cuda
