// out = in, rounded to nearest even in another type.
#include "ops/device/device.cuh"

namespace glim::cuda {
namespace {

template <class From, class To>
struct Rounded {
  __device__ To operator()(From x) const { return narrow<To>(widen(x)); }
};

}  // namespace

void cast(const KernelArgs& k) {
  dispatch_float(k.in[0].type.dtype, [&](auto from_tag) {
    using From = typename decltype(from_tag)::Type;
    dispatch_float(k.out[0].type.dtype, [&](auto to_tag) {
      using To = typename decltype(to_tag)::Type;
      map<To>(stream(k), Rounded<From, To>{}, k.out[0], rows_of<const From>(k.in[0]));
    });
  });
}

}  // namespace glim::cuda
