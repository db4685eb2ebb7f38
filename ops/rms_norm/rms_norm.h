#pragma once
#include "ops/define.h"
#include "ops/rms_norm/rms_norm_attrs.h"

namespace glim::ops {

// x / sqrt(mean(x^2) + eps) * (weight_offset + weight), over each row, or over every `group` consecutive columns (one head, say)
// when group > 0 (arXiv:1910.07467).  in [T, W], weight [W] or [group]; without a weight just the normalised x.
inline ValueId rms_norm(Graph& g, ValueId in, ValueId weight, double eps, double weight_offset = 0, int64_t group = 0) {
  return emit_value(g, "rms_norm", {in, weight}, RmsNormAttrs{eps, weight_offset, group});
}

}  // namespace glim::ops

namespace glim::cuda {
void rms_norm(const KernelArgs& k);
void rms_norm_vjp(const KernelArgs& k);
}  // namespace glim::cuda
