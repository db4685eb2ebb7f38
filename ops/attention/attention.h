#pragma once
#include "ops/attention/attention_attrs.h"
#include "ops/define.h"

namespace glim::ops {

struct Attention {
  ValueId out;  // [T, num_heads * d]
  ValueId lse;  // acc[T, num_heads]: log of the sum of exp(scores); a saved primal, no cotangent flows into it
};
// softmax(scale * q k^T) v inside each segment. q [T, num_heads * d], k and v [T, num_kv_heads * d]; query head h reads key-value head
// h / (num_heads / num_kv_heads). Segment g is rows [segments[g], segments[g + 1]) of segments i32[G + 1]; rows outside come out 0.
inline Attention attention(Graph& g, ValueId q, ValueId k, ValueId v, ValueId segments, const AttentionAttrs& attrs) {
  const NodeId n = emit(g, "attention", {q, k, v, segments}, attrs);
  return {g.output(n, 0), g.output(n, 1)};
}

void attention_cpu(const KernelArgs& k);
void attention_vjp_cpu(const KernelArgs& k);

}  // namespace glim::ops

namespace glim::cuda {
void attention(const KernelArgs& k);
void attention_vjp(const KernelArgs& k);
}  // namespace glim::cuda
