#pragma once
// Runs one CUDA kernel on tensors of the host, without the runtime's plan: every operand and output has device memory of its own.
#include "tests/ops/interpreter.h"

namespace glim::testing {

struct DeviceRunOptions {
  bool margins = false;     // rank-2 operands and outputs lie in wider rows
  bool misaligned = false;  // every buffer starts one element behind an aligned address
  bool in_place = false;    // outputs that may overwrite an operand do
};
struct DeviceRun : KernelRun {
  bool workspace_intact = true;  // nothing was written behind it
};
// Outputs and workspace are poisoned first (NaN). Errors of CUDA, and wrong values in the data, are in `error`.
DeviceRun run_op_on_device(const OpDef& def, std::span<const uint32_t> attr_words, std::span<const Tensor* const> in,
                           const DeviceRunOptions& options = {});

}  // namespace glim::testing
