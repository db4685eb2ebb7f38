#pragma once
#include "ops/define.h"
#include "ops/fill/fill_attrs.h"

namespace glim::ops {

// A constant tensor. Integer types take integral values only.
inline ValueId fill(Graph& g, const TensorType& type, double value) {
  return emit_value(g, "fill", {}, FillAttrs{value, static_cast<int64_t>(type.dtype), type.shape.rank, type.shape.dims});
}

}  // namespace glim::ops

namespace glim::cuda {
void fill(const KernelArgs& k);
}  // namespace glim::cuda
