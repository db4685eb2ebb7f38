#pragma once
// Where a NaN or an infinity came from: for the message of a run that gave up.
#include <optional>
#include <string>

#include "runtime/model.h"

namespace glim {

// The first parameter (in the model's order) that holds one: "parameter decoder.0.q_proj: nan at element 17".
[[nodiscard]] std::optional<std::string> find_non_finite_parameter(const Model& model);
// Runs the program on the inputs that are set, node by node: "linear at decoder.0 (model.toml:12:3), output 0: inf at [3, 17]".
Result<std::optional<std::string>> find_non_finite_node(Model& model, ProgramKind kind);

}  // namespace glim
