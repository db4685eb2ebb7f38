#pragma once
#include "ops/define.h"

namespace glim::ops {

struct ScaleAttrs {
  double factor;
};
// in * factor. The factor is used in the type that accumulates: it is never rounded to bf16.
inline ValueId scale(Graph& g, ValueId in, double factor) { return emit_value(g, "scale", {in}, ScaleAttrs{factor}); }

}  // namespace glim::ops
