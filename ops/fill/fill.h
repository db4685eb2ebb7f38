#pragma once
#include <array>

#include "ops/define.h"

namespace glim::ops {

struct FillAttrs {
  double value;
  int64_t dtype;  // a DType
  int64_t rank;
  std::array<int64_t, kMaxRank> dims;  // 0 past the rank
};
// A constant tensor. Integer types take integral values only.
inline ValueId fill(Graph& g, const TensorType& type, double value) {
  return emit_value(g, "fill", {}, FillAttrs{value, static_cast<int64_t>(type.dtype), type.shape.rank, type.shape.dims});
}

}  // namespace glim::ops
