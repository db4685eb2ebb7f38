#pragma once
// Inputs for the cases of the op table.
#include <vector>

#include "tests/ops/interpreter.h"

namespace glim::testing {

// The dtype of a case's input when kReal is `real`.
[[nodiscard]] DType dtype_of(const CaseInput& input, DType real);
// One tensor per operand, the same values (up to rounding) for every `real`; empty shapes for absent ones.
[[nodiscard]] std::vector<Tensor> make_inputs(const OpCase& op_case, DType real);
// What run_op takes: null where the operand is absent.
[[nodiscard]] std::vector<const Tensor*> operands_of(const OpCase& op_case, const std::vector<Tensor>& inputs);
[[nodiscard]] std::vector<double> random_normal(int64_t count, uint64_t seed);

}  // namespace glim::testing
