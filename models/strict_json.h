#pragma once
// JSON from outside, checked for what nlohmann/json lets through: a repeated key (there the last one wins silently), nesting
// without a limit, and a NUL that ends the text early.
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "engine/error.h"

namespace glim {

inline constexpr int kMaxJsonDepth = 32;
inline constexpr size_t kMaxJsonValues = 1'000'000;  // the tree costs more memory than its text: "[]," makes an array

// `path` is for messages only. Errors: kInvalidFile.
[[nodiscard]] Result<nlohmann::json> parse_strict_json(std::string_view text, const std::string& path, size_t max_values = kMaxJsonValues);

}  // namespace glim
