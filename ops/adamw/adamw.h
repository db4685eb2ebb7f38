#pragma once
#include <span>

#include "ops/adamw/adamw_attrs.h"
#include "ops/define.h"

namespace glim::ops {

// One parameter tensor and its state. master (invalid without has_master), gradient, m and v are in the accumulation type.
struct AdamwTensor {
  ValueId param, master, gradient, m, v;
};
struct AdamwUpdate {
  ValueId step;
  std::vector<AdamwTensor> tensors;  // gradient is invalid
};
// AdamW (arXiv:1711.05101, with PyTorch's order of operations) over all tensors at once; tensors of rank >= 2 are decayed.
// With stochastic_rounding, bf16 parameters without a master copy are rounded so that small updates are kept on average.
// learning_rate, step (updates made so far) and scale (of the gradients) are acc[1]; finite is i32[1], 0 = change nothing.
AdamwUpdate adamw(Graph& g, ValueId learning_rate, ValueId step, ValueId scale, ValueId finite, std::span<const AdamwTensor> tensors,
                  const AdamwAttrs& attrs);

}  // namespace glim::ops

namespace glim::cuda {
void adamw(const KernelArgs& k);
}  // namespace glim::cuda
