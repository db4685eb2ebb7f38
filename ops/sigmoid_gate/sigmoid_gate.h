#pragma once
#include "ops/define.h"

namespace glim::ops {

// in * sigmoid(gate); both have the same type.
inline ValueId sigmoid_gate(Graph& g, ValueId in, ValueId gate) { return emit_value(g, "sigmoid_gate", {in, gate}); }

}  // namespace glim::ops

namespace glim::cuda {
void sigmoid_gate(const KernelArgs& k);
void sigmoid_gate_vjp(const KernelArgs& k);
}  // namespace glim::cuda
