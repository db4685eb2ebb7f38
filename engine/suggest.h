#pragma once
// "Did you mean": the known name closest to a wrong one.
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace glim {

// The candidate with the least edit distance to `name`, or "" when none is within half of its length.
[[nodiscard]] std::string closest_name(std::string_view name, std::span<const std::string> candidates);
[[nodiscard]] std::string closest_name(std::string_view name, std::span<const std::string_view> candidates);
// "; did you mean 'x'?" or "".
[[nodiscard]] std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);
[[nodiscard]] std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace glim
