#pragma once
// Apart from fill.h, because CUDA files include this (and no fmt).
#include <array>
#include <cstdint>

#include "engine/type.h"

namespace glim::ops {

struct FillAttrs {
  double value;
  int64_t dtype;  // a DType
  int64_t rank;
  std::array<int64_t, kMaxRank> dims;  // 0 past the rank
};

}  // namespace glim::ops
