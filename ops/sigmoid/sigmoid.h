#pragma once
#include "ops/define.h"

namespace glim::ops {

// 1 / (1 + exp(-in))
inline ValueId sigmoid(Graph& g, ValueId in) { return emit_value(g, "sigmoid", {in}); }

}  // namespace glim::ops

namespace glim::cuda {
void sigmoid(const KernelArgs& k);
void sigmoid_vjp(const KernelArgs& k);
}  // namespace glim::cuda
