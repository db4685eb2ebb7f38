#pragma once
#include "ops/define.h"
#include "ops/gather_rows/gather_rows_attrs.h"

namespace glim::ops {

// out[r] = in[indices[r]]; a row whose index is skip_index is zero.  in [N, D], indices i32[R] -> [R, D]
inline ValueId gather_rows(Graph& g, ValueId in, ValueId indices, int64_t skip_index = -1) {
  return emit_value(g, "gather_rows", {in, indices}, GatherRowsAttrs{skip_index});
}

}  // namespace glim::ops

namespace glim::cuda {
void gather_rows(const KernelArgs& k);
}  // namespace glim::cuda
