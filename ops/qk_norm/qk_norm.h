#pragma once
#include "ops/define.h"
#include "ops/qk_norm/qk_norm_attrs.h"

namespace glim::ops {

// What queries and keys go through between their projection and attention, per head of head_dim columns:
//   rope(factor * rms_norm(in; eps), positions; theta)        without positions: not rotated
// in [T, H * head_dim], with any row stride (columns of a packed product); positions i32[T]
inline ValueId qk_norm(Graph& g, ValueId in, ValueId positions, const QkNormAttrs& attrs) {
  return emit_value(g, "qk_norm", {in, positions}, attrs);
}

}  // namespace glim::ops

namespace glim::cuda {
void qk_norm(const KernelArgs& k);
void qk_norm_vjp(const KernelArgs& k);
}  // namespace glim::cuda
