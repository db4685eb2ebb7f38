#pragma once
// Apart from rms_norm.h, because CUDA files include this (and no fmt).
#include <cstdint>

namespace glim::ops {

struct RmsNormAttrs {
  double eps;
  double weight_offset;
  int64_t group;
};

// rms_norm_vjp on a GPU: a block takes this many rows, and leaves their part of ct_weight in the workspace.
inline constexpr int64_t kCudaRowsPerChunk = 16;

}  // namespace glim::ops
