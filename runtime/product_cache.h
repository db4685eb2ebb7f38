#pragma once
// What timing found out about matrix products, kept on disk, so that the next run on such a machine need not time again:
// {"format": 1, "machines": {"NVIDIA H200, ...": {"bf16 512x512x512, ...": "0000004200000012"}}}.
#include "runtime/executable.h"

namespace glim {

// $XDG_CACHE_HOME/glim/products.json, or that in ~/.cache. "" where neither variable is an absolute path.
[[nodiscard]] std::string product_cache_path();
// The choices for `machine`. A file that is not there, or that is anything but such a file, has none.
[[nodiscard]] AlgorithmChoices read_product_cache(const std::string& path, const std::string& machine);
// Adds the choices to the file's, in one step; makes the folder. kIo when that is not possible.
Status write_product_cache(const std::string& path, const std::string& machine, const AlgorithmChoices& choices);

}  // namespace glim
