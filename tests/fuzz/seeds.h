#pragma once
// Inputs to start fuzzing from, made from files of this repository.
#include <string>
#include <string_view>
#include <vector>

namespace glim {

// `target` is the name of a fuzz target, "safetensors_fuzz"; nothing for one that is not known.
[[nodiscard]] std::vector<std::string> seeds_of(std::string_view target);

}  // namespace glim
