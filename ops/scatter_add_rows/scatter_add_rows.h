#pragma once
#include "ops/define.h"
#include "ops/scatter_add_rows/scatter_add_rows_attrs.h"

namespace glim::ops {

// out[n] = sum of in[r] over the r with indices[r] == n, in order of r; rows whose index is skip_index are left out.
// in [R, D], indices i32[R] -> [num_rows, D]. Fusion may give it an accumulator that the sums are added to, and wide_output.
inline ValueId scatter_add_rows(Graph& g, ValueId in, ValueId indices, int64_t num_rows, int64_t skip_index = -1) {
  return emit_value(g, "scatter_add_rows", {in, indices}, ScatterAddRowsAttrs{num_rows, skip_index, 0});
}

}  // namespace glim::ops

namespace glim::cuda {
void scatter_add_rows(const KernelArgs& k);
}  // namespace glim::cuda
