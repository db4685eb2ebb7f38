#pragma once
#include <span>

#include "ops/define.h"

namespace glim::ops {

// The sum of the squares of all elements of all operands, in the accumulation type: acc[1].
inline ValueId sum_of_squares(Graph& g, std::span<const ValueId> in) { return g.output(emit(g, "sum_of_squares", in, NoAttrs{})); }

}  // namespace glim::ops

namespace glim::cuda {
void sum_of_squares(const KernelArgs& k);
}  // namespace glim::cuda
