#pragma once
// Apart from softcap.h, because CUDA files include this (and no fmt).
#include <cstdint>

namespace glim::ops {

struct SoftcapAttrs {
  double cap;
};

}  // namespace glim::ops
