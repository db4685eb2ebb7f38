#pragma once
// Apart from pad.h, because CUDA files include this (and no fmt).
#include <cstdint>

namespace glim::ops {

struct PadAttrs {
  int64_t axis, begin, length;
};

}  // namespace glim::ops
