#pragma once
#include "ops/clip/clip_attrs.h"
#include "ops/define.h"

namespace glim::ops {

struct Clip {
  ValueId scale, norm, finite;
};
// From the sum of the squares of all gradients, acc[1]: the factor that brings their norm down to max_norm (<= 0: no limit, 1), the
// norm, both acc[1], and whether it is finite, i32[1].
inline Clip clip(Graph& g, ValueId sum_of_squares, double max_norm) {
  const NodeId node = emit(g, "clip", {sum_of_squares}, ClipAttrs{max_norm});
  return {g.output(node, 0), g.output(node, 1), g.output(node, 2)};
}

}  // namespace glim::ops

namespace glim::cuda {
void clip(const KernelArgs& k);
}  // namespace glim::cuda
