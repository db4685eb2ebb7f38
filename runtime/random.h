#pragma once
// Counter-based random numbers: draw k of a stream is a pure function of (stream, k), whatever the number of threads.
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

#include "ops/mix_bits.h"

namespace glim {

inline uint64_t make_stream(uint64_t seed, std::string_view name) {
  uint64_t hash = mix_bits(seed);
  for (const char c : name) hash = mix_bits(hash ^ static_cast<uint8_t>(c));
  return hash;
}
// Uniform in [0, 1), 53 bits.
inline double uniform_draw(uint64_t stream, uint64_t k) {
  return static_cast<double>(mix_bits(stream + k) >> 11) * (1.0 / 9007199254740992.0);
}
// Mean 0, variance 1 (Box and Muller, 1958).
inline double normal_draw(uint64_t stream, uint64_t k) {
  const double u = uniform_draw(stream, 2 * k) + 0.5 / 9007199254740992.0;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * uniform_draw(stream, 2 * k + 1));
}

}  // namespace glim
