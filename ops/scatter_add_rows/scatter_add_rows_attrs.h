#pragma once
// Apart from scatter_add_rows.h, because CUDA files include this (and no fmt).
#include <cstdint>

namespace glim::ops {

struct ScatterAddRowsAttrs {
  int64_t num_rows, skip_index;
  int64_t wide_output;
};

}  // namespace glim::ops
