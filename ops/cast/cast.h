#pragma once
#include "ops/define.h"

namespace glim::ops {

struct CastAttrs {
  int64_t dtype;  // a floating-point DType
};
// in, rounded to nearest even in `dtype`; `in` itself when it has that dtype already.
inline ValueId cast(Graph& g, ValueId in, DType dtype) {
  if (g.type(in).dtype == dtype) return in;
  return emit_value(g, "cast", {in}, CastAttrs{static_cast<int64_t>(dtype)});
}

}  // namespace glim::ops

namespace glim::cuda {
void cast(const KernelArgs& k);
}  // namespace glim::cuda
