#pragma once
// Apart from embedding_norm.h, because CUDA files include this (and no fmt).
#include <cstdint>

namespace glim::ops {

struct EmbeddingNormAttrs {
  int64_t padding_index;
  double eps;
};

}  // namespace glim::ops
