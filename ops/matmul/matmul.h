#pragma once
#include "ops/define.h"
#include "ops/matmul/matmul_attrs.h"

namespace glim::ops {

// op(a) [M, K] * op(b) [K, N] -> [M, N], where op transposes a [K, M] or b [N, K] when asked. `accumulator` [M, N] is added; the
// result takes over its buffer.
inline ValueId matmul(Graph& g, ValueId a, ValueId b, MatmulAttrs attrs = {}, ValueId accumulator = {}) {
  return emit_value(g, "matmul", {a, b, accumulator}, attrs);
}

}  // namespace glim::ops

namespace glim::cuda {
void matmul(const KernelArgs& k);
}  // namespace glim::cuda
