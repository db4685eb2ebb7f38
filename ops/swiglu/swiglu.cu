// out = g s(g) u, and its cotangents ct u s (1 + g (1 - s)) and ct g s. f32 arithmetic (f64 in f64 runs), each result rounded once.
#include "ops/device/math.cuh"

namespace glim::cuda {
namespace {

template <class T>
struct Swiglu {
  __device__ T operator()(T gate, T up) const {
    const Accumulate<T> g = widen(gate);
    return narrow<T>(g * logistic(g) * widen(up));
  }
};
template <class T>
struct SwigluVjp {
  __device__ Both<T> operator()(T gate, T up, T cotangent) const {
    const Accumulate<T> g = widen(gate), u = widen(up), ct = widen(cotangent), s = logistic(g);
    return {narrow<T>(ct * u * s * (1 + g * (1 - s))), narrow<T>(ct * g * s)};
  }
};

}  // namespace

void swiglu(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    map<T>(stream(k), Swiglu<T>{}, k.out[0], rows_of<const T>(k.in[0]), rows_of<const T>(k.in[1]));
  });
}

void swiglu_vjp(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    map_both<T>(stream(k), SwigluVjp<T>{}, k.out[0], k.out[1], rows_of<const T>(k.in[0]), rows_of<const T>(k.in[1]),
                rows_of<const T>(k.in[2]));
  });
}

}  // namespace glim::cuda
