#pragma once
#include <span>

#include "ops/define.h"

namespace glim::ops {

struct ConcatAttrs {
  int64_t axis;
};
// The parts one after another along axis 0 (rows) or 1 (columns); one dtype (any), equal extents elsewhere. The inverse of split.
inline ValueId concat(Graph& g, std::span<const ValueId> parts, int64_t axis) {
  return g.output(emit(g, "concat", parts, ConcatAttrs{axis}));
}

}  // namespace glim::ops
