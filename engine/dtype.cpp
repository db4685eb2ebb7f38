#include "engine/dtype.h"

#include <array>

namespace glim {
namespace {
constexpr std::array<std::string_view, 5> kNames{"f64", "f32", "bf16", "i64", "i32"};
}

std::string_view to_string(DType dtype) { return kNames[static_cast<size_t>(dtype)]; }

std::optional<DType> parse_dtype(std::string_view text) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == text) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace glim
