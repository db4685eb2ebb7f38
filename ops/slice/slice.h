#pragma once
#include "ops/define.h"
#include "ops/slice/slice_attrs.h"

namespace glim::ops {

// A view of [begin, begin + length) of axis 0 (rows) or 1 (columns) of a rank-1 or rank-2 tensor of any dtype.
inline ValueId slice(Graph& g, ValueId in, int64_t axis, int64_t begin, int64_t length) {
  return emit_value(g, "slice", {in}, SliceAttrs{axis, begin, length});
}

}  // namespace glim::ops

namespace glim::cuda {
void slice(const KernelArgs& k);
}  // namespace glim::cuda
