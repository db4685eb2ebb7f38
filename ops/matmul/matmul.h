#pragma once
#include "ops/define.h"

namespace glim::ops {

struct MatmulAttrs {
  int64_t transpose_a, transpose_b;
  int64_t wide_output;  // the result stays in the accumulation type
};
// op(a) [M, K] * op(b) [K, N] -> [M, N], where op transposes a [K, M] or b [N, K] when asked. `accumulator` [M, N] is added; the
// result takes over its buffer.
inline ValueId matmul(Graph& g, ValueId a, ValueId b, MatmulAttrs attrs = {}, ValueId accumulator = {}) {
  return emit_value(g, "matmul", {a, b, accumulator}, attrs);
}

}  // namespace glim::ops
