#pragma once
#include "ops/define.h"

namespace glim::ops {

// gate * sigmoid(gate) * up; both have the same type.
inline ValueId swiglu(Graph& g, ValueId gate, ValueId up) { return emit_value(g, "swiglu", {gate, up}); }

}  // namespace glim::ops

namespace glim::cuda {
void swiglu(const KernelArgs& k);
void swiglu_vjp(const KernelArgs& k);
}  // namespace glim::cuda
