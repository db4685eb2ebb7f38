#pragma once
// Counter-based random bits, the same on the host and on the device.
#include <cstdint>

#ifdef __CUDACC__
#define GLIM_HOST_DEVICE __host__ __device__
#else
#define GLIM_HOST_DEVICE
#endif

namespace glim {

// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): its sequence is the mix of x, x + kMixStep, x + 2 kMixStep, ...
inline constexpr uint64_t kMixStep = 0x9e3779b97f4a7c15ULL;
GLIM_HOST_DEVICE constexpr uint64_t mix_bits(uint64_t x) {
  x += kMixStep;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace glim
