// out = x Phi(x), and its cotangent ct (Phi(x) + x phi(x)). Phi(x) = erfc(-x / sqrt(2)) / 2 keeps its relative accuracy in the left
// tail. f32 arithmetic (f64 in f64 runs), rounded once.
#include "ops/device/math.cuh"

namespace glim::cuda {
namespace {

template <class A>
__device__ A normal_cdf(A x) {
  return A(0.5) * erfc_of(x * A(-0.70710678118654752440));
}
template <class T>
struct Gelu {
  __device__ T operator()(T x) const { return narrow<T>(widen(x) * normal_cdf(widen(x))); }
};
template <class T>
struct GeluVjp {
  __device__ T operator()(T in, T ct) const {
    using A = Accumulate<T>;
    const A x = widen(in), density = A(0.39894228040143267794) * exp_of(A(-0.5) * x * x);
    return narrow<T>(widen(ct) * (normal_cdf(x) + x * density));
  }
};

}  // namespace

void gelu(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    map<T>(stream(k), Gelu<T>{}, k.out[0], rows_of<const T>(k.in[0]));
  });
}

void gelu_vjp(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    map<T>(stream(k), GeluVjp<T>{}, k.out[0], rows_of<const T>(k.in[0]), rows_of<const T>(k.in[1]));
  });
}

}  // namespace glim::cuda
