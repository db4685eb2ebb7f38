#pragma once
// Apart from rms_norm.h, because CUDA files include this (and no fmt).
#include <algorithm>
#include <cstdint>

namespace glim::ops {

struct RmsNormAttrs {
  double eps;
  double weight_offset;
  int64_t group;
};

// On a GPU the rows of a norm's backward pass are cut into so many chunks, each of which leaves its part of the weight's cotangent in the
// workspace: one per multiprocessor of an H200, more of short rows. It depends on the sizes alone.
inline int64_t num_cuda_chunks(int64_t rows, int64_t width) {
  constexpr int64_t kProcessors = 132, kMost = 8, kLongRow = 8192;
  return std::min(rows, kProcessors * std::clamp<int64_t>(kLongRow / std::max<int64_t>(1, width), 1, kMost));
}

}  // namespace glim::ops
