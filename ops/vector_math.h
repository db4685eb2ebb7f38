#pragma once
// exp, tanh and row statistics as plain loops that the compiler vectorises. NaN and infinities pass through: a
// diverged step must show. exp: about 2 ulp, results below the smallest normal number are 0.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace glim::cpu {

// 2^n e^r with x = n ln 2 + r, |r| <= ln 2 / 2; Taylor's series of e^r; n is read from the low bits of x log2(e) + 1.5 * 2^23.
inline float fast_exp(float x) {
  const float bounded = x < -87.0F ? -87.0F : (x > 88.0F ? 88.0F : x);
  const float shifted = bounded * 1.44269504F + 12582912.0F;
  const float n = shifted - 12582912.0F;
  const float r = (bounded - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.0F / 5040.0F;
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r * r + r + 1.0F;
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000U);
  const float value = p * power;
  return x < -87.0F ? 0.0F : (x > 88.0F ? std::numeric_limits<float>::infinity() : value);
}

inline double fast_exp(double x) {
  const double bounded = x < -708.0 ? -708.0 : (x > 709.0 ? 709.0 : x);
  const double shifted = bounded * 1.4426950408889634074 + 6755399441055744.0;
  const double n = shifted - 6755399441055744.0;
  const double r = (bounded - n * 6.93145751953125e-1) - n * 1.42860682030941723212e-6;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r * r + r + 1.0;
  const double power = std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) << 52) + 0x3ff0000000000000ULL);
  const double value = p * power;
  return x < -708.0 ? 0.0 : (x > 709.0 ? std::numeric_limits<double>::infinity() : value);
}

// Cephes' tanhf: an odd polynomial near 0, otherwise 1 - 2 / (e^2|x| + 1).
inline float fast_tanh(float x) {
  const float z = x * x;
  float p = -5.70498872745e-3F;
  p = p * z + 2.06390887954e-2F;
  p = p * z - 5.37397155531e-2F;
  p = p * z + 1.33314422036e-1F;
  p = p * z - 3.33332819422e-1F;
  const float near = p * z * x + x;
  const float size = std::fabs(x);
  const float far = 1.0F - 2.0F / (fast_exp(2.0F * size) + 1.0F);
  return size < 0.625F ? near : std::copysign(far, x);
}
inline double fast_tanh(double x) { return std::tanh(x); }

inline constexpr int64_t kLanes = 16;

// reduce(lanes[0], reduce(lanes[1], ...)) as a tree.
template <class A, class F>
A across_lanes(A (&lanes)[kLanes], F&& reduce) {
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] = reduce(lanes[lane], lanes[lane + half]);
  }
  return lanes[0];
}

// Sums are taken in kLanes partial sums of at most 1024 elements, then in double.
// Calls value(i) for each i in [0, n), which may also store it, and returns the sum.
template <class A, class F>
double lane_sum(int64_t n, F&& value) {
  double total = 0;
  int64_t i = 0;
  while (n - i >= kLanes) {
    A lanes[kLanes] = {};
    const int64_t end = i + std::min<int64_t>(1024, (n - i) / kLanes * kLanes);
    for (; i < end; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += value(i + lane);
    }
    double wide[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) wide[lane] = static_cast<double>(lanes[lane]);
    total += across_lanes(wide, [](double x, double y) { return x + y; });
  }
  for (; i < n; ++i) total += static_cast<double>(value(i));
  return total;
}

// The largest of value(i), -infinity for n = 0.
template <class A, class F>
A lane_max(int64_t n, F&& value) {
  A lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<A>::infinity());
  int64_t i = 0;
  for (; n - i >= kLanes; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const A v = value(i + lane);
      lanes[lane] = v > lanes[lane] ? v : lanes[lane];
    }
  }
  A best = across_lanes(lanes, [](A x, A y) { return y > x ? y : x; });
  for (; i < n; ++i) {
    const A v = value(i);
    best = v > best ? v : best;
  }
  return best;
}

}  // namespace glim::cpu
