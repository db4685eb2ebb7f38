#pragma once
// Apart from adamw.h, because CUDA files include this (and no fmt).
#include <cstdint>

namespace glim::ops {

struct AdamwAttrs {
  double beta1, beta2, eps, weight_decay;
  int64_t has_master;
};
// What the CUDA kernel keeps there: the factors of a step.
inline constexpr int kAdamwWorkspaceBytes = 128;

}  // namespace glim::ops
