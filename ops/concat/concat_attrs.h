#pragma once
// Apart from concat.h, because CUDA files include this (and no fmt).
#include <cstdint>

namespace glim::ops {

struct ConcatAttrs {
  int64_t axis;
};

}  // namespace glim::ops
