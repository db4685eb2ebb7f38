#pragma once
#include "ops/define.h"

namespace glim::ops {

// in * Phi(in), Phi the normal distribution function: the exact form (erf), not the tanh approximation (arXiv:1606.08415).
inline ValueId gelu(Graph& g, ValueId in) { return emit_value(g, "gelu", {in}); }

}  // namespace glim::ops

namespace glim::cuda {
void gelu(const KernelArgs& k);
void gelu_vjp(const KernelArgs& k);
}  // namespace glim::cuda
