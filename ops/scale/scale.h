#pragma once
#include "ops/define.h"
#include "ops/scale/scale_attrs.h"

namespace glim::ops {

// in * factor. The factor is used in the type that accumulates: it is never rounded to bf16.
inline ValueId scale(Graph& g, ValueId in, double factor) { return emit_value(g, "scale", {in}, ScaleAttrs{factor}); }

}  // namespace glim::ops

namespace glim::cuda {
void scale(const KernelArgs& k);
}  // namespace glim::cuda
