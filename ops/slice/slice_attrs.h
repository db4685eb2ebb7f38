#pragma once
// Apart from slice.h, because CUDA files include this (and no fmt).
#include <cstdint>

namespace glim::ops {

struct SliceAttrs {
  int64_t axis, begin, length;
};

}  // namespace glim::ops
