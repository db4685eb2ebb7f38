#pragma once
// bfloat16 as storage: the upper half of an f32, rounded to nearest even. NaN stays NaN.
#include <cstdint>
#include <cstring>

#include "ops/accumulate.h"

namespace glim {

struct Bf16 {
  uint16_t bits = 0;
  Bf16() = default;
  explicit Bf16(float value) {
    uint32_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    if ((word & 0x7fffffffU) > 0x7f800000U)
      bits = static_cast<uint16_t>((word >> 16) | 0x40U);
    else
      bits = static_cast<uint16_t>((word + 0x7fffU + ((word >> 16) & 1U)) >> 16);
  }
  explicit Bf16(double value) : Bf16(static_cast<float>(value)) {}
  explicit operator float() const {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value = 0;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
  explicit operator double() const { return static_cast<double>(static_cast<float>(*this)); }
};
static_assert(sizeof(Bf16) == 2);

template <>
struct AccumulateOf<Bf16> {
  using Type = float;
};

}  // namespace glim
