#pragma once
// Element types of tensors.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace glim {

enum class DType : uint8_t { kF64, kF32, kBF16, kI64, kI32 };

[[nodiscard]] constexpr size_t size_of(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kI64 ? 8 : dtype == DType::kBF16 ? 2 : 4;
}
[[nodiscard]] constexpr bool is_float(DType dtype) { return dtype <= DType::kBF16; }
// The type in which sums over this type are taken: f64 for f64, otherwise f32.
[[nodiscard]] constexpr DType accumulation_dtype(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

[[nodiscard]] std::string_view to_string(DType dtype);  // "f64", "f32", "bf16", "i64", "i32"
[[nodiscard]] std::optional<DType> parse_dtype(std::string_view text);

}  // namespace glim
