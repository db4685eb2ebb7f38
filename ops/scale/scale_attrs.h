#pragma once
// Apart from scale.h, because CUDA files include this (and no fmt).
#include <cstdint>

namespace glim::ops {

struct ScaleAttrs {
  double factor;
};

}  // namespace glim::ops
