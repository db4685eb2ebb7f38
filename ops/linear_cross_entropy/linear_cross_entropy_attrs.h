#pragma once
// Apart from linear_cross_entropy.h, because CUDA files include this (and no fmt).
#include "ops/cross_entropy/cross_entropy_attrs.h"

namespace glim::ops {

struct LinearCrossEntropyAttrs {
  double multiplier;
  double softcap;  // 0 = none
  int64_t ignore_index;
  Reduction reduction;
  int64_t chunk_rows;
};
inline constexpr LinearCrossEntropyAttrs kLinearCrossEntropyDefaults{1, 0, -100, Reduction::kMean, 1024};

struct LinearCrossEntropyVjpAttrs {
  LinearCrossEntropyAttrs head;
  int64_t input_gradient, weight_gradient;  // which outputs there are
  int64_t wide_weight_gradient;             // ct_weight has the accumulation type
};
// Output numbers of the gradients, of which only those that the attributes ask for exist; `first` is 0 in linear_cross_entropy_vjp and
// kNumCrossEntropyOutputs in linear_cross_entropy_grad. -1 = absent.
constexpr int ct_in_output(const LinearCrossEntropyVjpAttrs& attrs, int first) { return attrs.input_gradient ? first : -1; }
constexpr int ct_weight_output(const LinearCrossEntropyVjpAttrs& attrs, int first) {
  return attrs.weight_gradient ? first + (attrs.input_gradient ? 1 : 0) : -1;
}

}  // namespace glim::ops
