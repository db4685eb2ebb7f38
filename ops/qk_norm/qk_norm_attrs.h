#pragma once
// Apart from qk_norm.h, because CUDA files include this (and no fmt).
#include <cstdint>

namespace glim::ops {

struct QkNormAttrs {
  double eps;
  int64_t head_dim;
  double factor, theta;
};
inline constexpr int64_t kMaxNormedHead = 1024;  // head_dim at most

}  // namespace glim::ops
