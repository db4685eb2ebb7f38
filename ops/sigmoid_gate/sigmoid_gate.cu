// out = x s(g), and its cotangents ct s and ct x s (1 - s). f32 arithmetic (f64 in f64 runs), each result rounded once.
#include "ops/device/math.cuh"

namespace glim::cuda {
namespace {

template <class T>
struct Gated {
  __device__ T operator()(T in, T gate) const { return narrow<T>(widen(in) * logistic(widen(gate))); }
};
template <class T>
struct GatedVjp {
  __device__ Both<T> operator()(T in, T gate, T cotangent) const {
    const Accumulate<T> s = logistic(widen(gate)), ct = widen(cotangent);
    return {narrow<T>(ct * s), narrow<T>(ct * widen(in) * s * (1 - s))};
  }
};

}  // namespace

void sigmoid_gate(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    map<T>(stream(k), Gated<T>{}, k.out[0], rows_of<const T>(k.in[0]), rows_of<const T>(k.in[1]));
  });
}

void sigmoid_gate_vjp(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    map_both<T>(stream(k), GatedVjp<T>{}, k.out[0], k.out[1], rows_of<const T>(k.in[0]), rows_of<const T>(k.in[1]),
                rows_of<const T>(k.in[2]));
  });
}

}  // namespace glim::cuda
