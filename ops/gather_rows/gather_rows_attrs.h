#pragma once
// Apart from gather_rows.h, because CUDA files include this (and no fmt).
#include <cstdint>

namespace glim::ops {

struct GatherRowsAttrs {
  int64_t skip_index;
};

}  // namespace glim::ops
