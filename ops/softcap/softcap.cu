// out = cap tanh(in / cap), and its cotangent ct (1 - (out / cap)^2). f32 arithmetic (f64 in f64 runs), rounded once.
#include "ops/device/math.cuh"
#include "ops/softcap/softcap_attrs.h"

namespace glim::cuda {
namespace {

template <class T>
struct Capped {
  Accumulate<T> cap;
  __device__ T operator()(T x) const { return narrow<T>(cap * tanh_of(widen(x) / cap)); }
};
template <class T>
struct CappedVjp {
  Accumulate<T> inverse_cap;
  __device__ T operator()(T out, T ct) const {
    const Accumulate<T> t = widen(out) * inverse_cap;
    return narrow<T>(widen(ct) * (1 - t * t));
  }
};

}  // namespace

void softcap(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto cap = static_cast<Accumulate<T>>(k.attrs<ops::SoftcapAttrs>().cap);
    map<T>(stream(k), Capped<T>{cap}, k.out[0], rows_of<const T>(k.in[0]));
  });
}

void softcap_vjp(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto inverse_cap = static_cast<Accumulate<T>>(1.0 / k.attrs<ops::SoftcapAttrs>().cap);
    map<T>(stream(k), CappedVjp<T>{inverse_cap}, k.out[0], rows_of<const T>(k.in[0]), rows_of<const T>(k.in[1]));
  });
}

}  // namespace glim::cuda
