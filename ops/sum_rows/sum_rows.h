#pragma once
#include "ops/define.h"

namespace glim::ops {

// out[n] = sum over t of in[t][n], taken in f64.  in [T, N] -> [N]
inline ValueId sum_rows(Graph& g, ValueId in) { return emit_value(g, "sum_rows", {in}); }

}  // namespace glim::ops

namespace glim::cuda {
void sum_rows(const KernelArgs& k);
}  // namespace glim::cuda
