#pragma once
#include "ops/define.h"
#include "ops/embedding_norm/embedding_norm_attrs.h"

namespace glim::ops {

// out[t] = weight[ids[t]] / sqrt(mean(weight[ids[t]]^2) + eps).  ids i32[T], weight [V, D] -> [T, D]. The weight's row padding_index
// (-1: none) gets no gradient. The rows as they are in the table are neither written nor saved.
inline ValueId embedding_norm(Graph& g, ValueId ids, ValueId weight, const EmbeddingNormAttrs& attrs) {
  return emit_value(g, "embedding_norm", {ids, weight}, attrs);
}

}  // namespace glim::ops

namespace glim::cuda {
void embedding_norm(const KernelArgs& k);
void embedding_norm_vjp(const KernelArgs& k);
}  // namespace glim::cuda
