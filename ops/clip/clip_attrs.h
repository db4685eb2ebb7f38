#pragma once
// Apart from clip.h, because CUDA files include this (and no fmt).
#include <cstdint>

namespace glim::ops {

struct ClipAttrs {
  double max_norm;
};

}  // namespace glim::ops
