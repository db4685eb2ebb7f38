#pragma once
// Apart from matmul.h, because CUDA files include this (and no fmt).
#include <cstdint>

namespace glim::ops {

struct MatmulAttrs {
  int64_t transpose_a, transpose_b;
  int64_t wide_output;  // the result stays in the accumulation type
};

}  // namespace glim::ops
