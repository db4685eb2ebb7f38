#pragma once
// What the CPU kernels of norms share.
#include <cmath>

#include "ops/cpu.h"
#include "ops/vector_math.h"

namespace glim::cpu {

// 1 / sqrt(mean(x^2) + eps) over n elements.
template <class T, class A = Accumulate<T>>
A reciprocal_rms(const T* x, int64_t n, double eps) {
  const double sum = lane_sum<A>(n, [x](int64_t i) {
    const A value = static_cast<A>(x[i]);
    return value * value;
  });
  return static_cast<A>(1.0 / std::sqrt(sum / static_cast<double>(n) + eps));
}

// offset + weight; 1 without a weight.
template <class T>
struct NormWeight {
  using A = Accumulate<T>;
  const T* weight;
  A offset;
  A operator()(int64_t i) const { return weight == nullptr ? A(1) : offset + static_cast<A>(weight[i]); }
};

// y = x r w: with g = ct w, ct_x = r (g - x r mean(g x r)).
template <class T, class Cotangent, class A = Accumulate<T>>
A mean_of_products(const T* x, const Cotangent& ct, const NormWeight<T>& w, A r, int64_t n) {
  return static_cast<A>(lane_sum<A>(n, [&](int64_t i) { return ct(i) * w(i) * (static_cast<A>(x[i]) * r); }) / static_cast<double>(n));
}

}  // namespace glim::cpu
