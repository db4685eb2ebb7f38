#pragma once
#include "ops/define.h"

namespace glim::ops {

struct LinearAttrs {
  int64_t wide_output;  // the result stays in the accumulation type
};
// in [T, K] * weight^T [K, N] + bias [N] -> [T, N]: weights lie as PyTorch stores them.
inline ValueId linear(Graph& g, ValueId in, ValueId weight, ValueId bias = {}, bool wide_output = false) {
  return emit_value(g, "linear", {in, weight, bias}, LinearAttrs{wide_output});
}

}  // namespace glim::ops

namespace glim::cuda {
void linear(const KernelArgs& k);
}  // namespace glim::cuda
