// out = in * other. bf16 is widened to f32 and rounded once.
#include "ops/device/device.cuh"

namespace glim::cuda {
namespace {

template <class T>
struct Product {
  __device__ T operator()(T a, T b) const { return narrow<T>(widen(a) * widen(b)); }
};

}  // namespace

void mul(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    map<T>(stream(k), Product<T>{}, k.out[0], rows_of<const T>(k.in[0]), rows_of<const T>(k.in[1]));
  });
}

}  // namespace glim::cuda
