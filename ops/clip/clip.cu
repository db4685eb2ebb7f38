// scale = min(1, max_norm / (norm + 1e-6)), norm = sqrt(sum of squares), finite: one thread, in f64.
#include "ops/clip/clip_attrs.h"

#include "ops/device/device.cuh"

namespace glim::cuda {
namespace {

template <class A>
__global__ void clip_norm(const A* sum_of_squares, double max_norm, A* scale, A* norm, int32_t* finite) {
  const double length = sqrt(static_cast<double>(*sum_of_squares));
  const bool is_finite = isfinite(length);
  // A norm that is not finite makes the step be skipped; its scale is still a number.
  *scale = static_cast<A>(max_norm <= 0 ? 1.0 : !is_finite ? 0.0 : fmin(1.0, max_norm / (length + 1e-6)));
  *norm = static_cast<A>(length);
  *finite = is_finite ? 1 : 0;
}

}  // namespace

void clip(const KernelArgs& k) {
  const double max_norm = k.attrs<ops::ClipAttrs>().max_norm;
  const auto launch = [&](auto tag) {
    using A = typename decltype(tag)::Type;
    clip_norm<<<1, 1, 0, stream(k)>>>(k.in[0].as<const A>(), max_norm, k.out[0].as<A>(), k.out[1].as<A>(), k.out[2].as<int32_t>());
  };
  k.in[0].type.dtype == DType::kF64 ? launch(Tag<double>{}) : launch(Tag<float>{});
}

}  // namespace glim::cuda
