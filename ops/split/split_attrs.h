#pragma once
// Apart from split.h, because CUDA files include this (and no fmt).
#include <array>
#include <cstdint>

namespace glim::ops {

inline constexpr int kMaxParts = 8;
struct SplitAttrs {
  int64_t axis;
  std::array<int64_t, kMaxParts> sizes;  // 0 past the last part
};

}  // namespace glim::ops
