#pragma once
#include "ops/define.h"
#include "ops/softcap/softcap_attrs.h"

namespace glim::ops {

// cap * tanh(in / cap): bounded to (-cap, cap), slope 1 at 0 (Gemma 2, arXiv:2408.00118).
inline ValueId softcap(Graph& g, ValueId in, double cap) { return emit_value(g, "softcap", {in}, SoftcapAttrs{cap}); }

}  // namespace glim::ops

namespace glim::cuda {
void softcap(const KernelArgs& k);
void softcap_vjp(const KernelArgs& k);
}  // namespace glim::cuda
