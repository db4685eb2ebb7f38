// out = factor * in. The factor is used in the accumulation type; bf16 is widened to f32 and rounded once.
#include "ops/device/device.cuh"
#include "ops/scale/scale_attrs.h"

namespace glim::cuda {
namespace {

template <class T>
struct Times {
  Accumulate<T> factor;
  __device__ T operator()(T x) const { return narrow<T>(widen(x) * factor); }
};

}  // namespace

void scale(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto factor = static_cast<Accumulate<T>>(k.attrs<ops::ScaleAttrs>().factor);
    map<T>(stream(k), Times<T>{factor}, k.out[0], rows_of<const T>(k.in[0]));
  });
}

}  // namespace glim::cuda
