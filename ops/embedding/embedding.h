#pragma once
#include "ops/define.h"

namespace glim::ops {

struct EmbeddingAttrs {
  int64_t padding_index;
};
// out[t] = weight[ids[t]].  ids i32[T], weight [V, D] -> [T, D]. The weight's row padding_index (-1: none) gets no gradient.
inline ValueId embedding(Graph& g, ValueId ids, ValueId weight, int64_t padding_index = -1) {
  return emit_value(g, "embedding", {ids, weight}, EmbeddingAttrs{padding_index});
}

// The type of the looked-up rows; ids, weight and padding_index as above.
Result<Types> embedding_types(const TensorType& ids, const TensorType& weight, int64_t padding_index);

}  // namespace glim::ops

namespace glim::cuda {
void embedding(const KernelArgs& k);
}  // namespace glim::cuda
