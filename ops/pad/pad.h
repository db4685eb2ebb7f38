#pragma once
#include "ops/define.h"
#include "ops/pad/pad_attrs.h"

namespace glim::ops {

// `in` from `begin` on along an axis whose extent becomes `length`, zeros around it. The transpose of slice.
inline ValueId pad(Graph& g, ValueId in, int64_t axis, int64_t begin, int64_t length) {
  return emit_value(g, "pad", {in}, PadAttrs{axis, begin, length});
}

}  // namespace glim::ops

namespace glim::cuda {
void pad(const KernelArgs& k);
}  // namespace glim::cuda
