#pragma once
#include "ops/define.h"
#include "ops/residual_norm/residual_norm_attrs.h"

namespace glim::ops {

// The end of a branch, with its post-norm, and the pre-norm of the next one:
//   out = in + rms_norm(branch; weight, eps, weight_offset)
//   normed = rms_norm(out; next_weight, next_eps, next_weight_offset)     only with next_eps > 0
// in, branch [T, W]; weights [W] or absent. `normed` is the norm of `out` as stored.
struct ResidualNorm {
  ValueId out, normed;  // normed: invalid without the second norm
};
ResidualNorm residual_norm(Graph& g, ValueId in, ValueId branch, ValueId weight, ValueId next_weight, const ResidualNormAttrs& attrs);

}  // namespace glim::ops

namespace glim::cuda {
void residual_norm(const KernelArgs& k);
void residual_norm_vjp(const KernelArgs& k);
}  // namespace glim::cuda
