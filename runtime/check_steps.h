#pragma once
#include "runtime/check_model.h"
#include "runtime/model.h"

namespace glim {

// Runs each step of a program on two models of one compilation, from the operands that `expected` has at that point, and compares the
// outputs: relative error ||found - expected|| / ||expected|| against a bound of the dtype. Returns the steps nearest to their bound, worst
// first, then a line over all. Inputs and parameters of `expected` must be set.
Result<std::vector<CheckLine>> check_steps(Model& found, Model& expected, ProgramKind kind, DType real);

}  // namespace glim
