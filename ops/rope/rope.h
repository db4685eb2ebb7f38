#pragma once
#include "ops/define.h"
#include "ops/rope/rope_attrs.h"

namespace glim::ops {

// Rotates each head of `in` by its row's position (arXiv:2104.09864), split-half layout: elements i and i + head_dim/2 turn by
// position * theta^(-2i/head_dim). `inverse` turns back.  in [T, H * head_dim], positions i32[T]
inline ValueId rope(Graph& g, ValueId in, ValueId positions, int64_t head_dim, double theta, bool inverse = false) {
  return emit_value(g, "rope", {in, positions}, RopeAttrs{head_dim, theta, inverse});
}

}  // namespace glim::ops

namespace glim::cuda {
void rope(const KernelArgs& k);
}  // namespace glim::cuda
