#pragma once
#include "ops/define.h"

namespace glim::ops {

// in * other, element by element; both have the same type.
inline ValueId mul(Graph& g, ValueId in, ValueId other) { return emit_value(g, "mul", {in, other}); }

}  // namespace glim::ops

namespace glim::cuda {
void mul(const KernelArgs& k);
}  // namespace glim::cuda
