#pragma once
// Apart from residual_norm.h, because CUDA files include this (and no fmt).

namespace glim::ops {

struct ResidualNormAttrs {
  double eps, weight_offset;
  double next_eps, next_weight_offset;  // next_eps 0: without the second norm
};

}  // namespace glim::ops
