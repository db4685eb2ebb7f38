#pragma once
#include <span>

#include "ops/concat/concat_attrs.h"
#include "ops/define.h"

namespace glim::ops {

// The parts one after another along axis 0 (rows) or 1 (columns); one dtype (any), equal extents elsewhere. The inverse of split.
inline ValueId concat(Graph& g, std::span<const ValueId> parts, int64_t axis) {
  return g.output(emit(g, "concat", parts, ConcatAttrs{axis}));
}

}  // namespace glim::ops

namespace glim::cuda {
void concat(const KernelArgs& k);
}  // namespace glim::cuda
