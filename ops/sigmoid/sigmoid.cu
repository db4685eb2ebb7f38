// out = 1 / (1 + exp(-in)), and its cotangent ct out (1 - out). f32 arithmetic (f64 in f64 runs), rounded once.
#include "ops/device/math.cuh"

namespace glim::cuda {
namespace {

template <class T>
struct Sigmoid {
  __device__ T operator()(T x) const { return narrow<T>(logistic(widen(x))); }
};
template <class T>
struct SigmoidVjp {
  __device__ T operator()(T out, T ct) const { return narrow<T>(widen(ct) * widen(out) * (1 - widen(out))); }
};

}  // namespace

void sigmoid(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    map<T>(stream(k), Sigmoid<T>{}, k.out[0], rows_of<const T>(k.in[0]));
  });
}

void sigmoid_vjp(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    map<T>(stream(k), SigmoidVjp<T>{}, k.out[0], rows_of<const T>(k.in[0]), rows_of<const T>(k.in[1]));
  });
}

}  // namespace glim::cuda
