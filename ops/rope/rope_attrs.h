#pragma once
// Apart from rope.h, because CUDA files include this (and no fmt).
#include <cstdint>

namespace glim::ops {

struct RopeAttrs {
  int64_t head_dim;
  double theta;
  int64_t inverse;
};

}  // namespace glim::ops
