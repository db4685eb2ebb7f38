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
inline constexpr LinearCrossEntropyAttrs kLinearCrossEntropyDefaults{1, 0, -100, Reduction::kMean, 2048};

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

// Where the parts of a CUDA kernel's workspace begin, 256-byte aligned.
struct HeadWorkspace {
  size_t chunk = 0, in, ct_in, list, count, bytes;
  HeadWorkspace(int64_t rows, int64_t chunk_rows, int64_t width, int64_t vocabulary, size_t element, size_t accumulated) {
    const auto after = [](size_t offset, int64_t elements, size_t size) {
      return (offset + static_cast<size_t>(elements) * size + 255) / 256 * 256;
    };
    in = after(chunk, chunk_rows * vocabulary, accumulated);  // [chunk_rows, V]: logits, then their cotangents
    ct_in = after(in, chunk_rows * width, element);           // [chunk_rows, D]: rows with a valid label, side by side
    list = after(ct_in, chunk_rows * width, element);         // [chunk_rows, D]: their cotangents
    count = after(list, rows, sizeof(int32_t));               // [T]: which rows those are
    bytes = after(count, 1, sizeof(int64_t));                 // [1]: how many
  }
};

}  // namespace glim::ops
