#pragma once
// Apart from adamw.h, because CUDA files include this (and no fmt).
#include <cstdint>

#include "ops/mix_bits.h"

namespace glim::ops {

struct AdamwAttrs {
  double beta1, beta2, eps, weight_decay;
  int64_t has_master;
  int64_t stochastic_rounding;  // of bf16 parameters without a master copy
};
// What the CUDA kernel keeps there: the factors of a step.
inline constexpr int kAdamwWorkspaceBytes = 128;

// The upper half of an f32 after 16 random bits were added below it: up or down, with probabilities that keep the mean (Gupta et al.,
// arXiv:1502.02551). Infinities stay; NaN stays NaN.
GLIM_HOST_DEVICE constexpr uint16_t round_stochastically(uint32_t word, uint16_t random) {
  if ((word & 0x7f800000U) == 0x7f800000U) return static_cast<uint16_t>(word >> 16 | ((word & 0x007fffffU) != 0 ? 0x40U : 0U));
  return static_cast<uint16_t>((word + random) >> 16);
}
// A pure function of the update's number, the tensor's and the element's, so that a resumed run rounds alike.
GLIM_HOST_DEVICE constexpr uint64_t rounding_stream(uint64_t step, uint64_t tensor) { return mix_bits(step * kMixStep ^ mix_bits(tensor)); }
GLIM_HOST_DEVICE constexpr uint16_t rounding_bits(uint64_t stream, int64_t element) {
  return static_cast<uint16_t>(mix_bits(stream + static_cast<uint64_t>(element / 4)) >> (16 * (element % 4)));
}

}  // namespace glim::ops
