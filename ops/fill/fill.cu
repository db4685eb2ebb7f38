// One value everywhere.
#include "ops/device/device.cuh"
#include "ops/fill/fill_attrs.h"

namespace glim::cuda {
namespace {

template <class T>
struct Constant {
  double value;
  __device__ T operator()() const { return narrow<T>(value); }
};

template <class T>
void fill_with(const KernelArgs& k) {
  map<T>(stream(k), Constant<T>{k.attrs<ops::FillAttrs>().value}, k.out[0]);
}

}  // namespace

void fill(const KernelArgs& k) {
  switch (k.out[0].type.dtype) {
    case DType::kF64: return fill_with<double>(k);
    case DType::kF32: return fill_with<float>(k);
    case DType::kBF16: return fill_with<__nv_bfloat16>(k);
    case DType::kI64: return fill_with<int64_t>(k);
    case DType::kI32: return fill_with<int32_t>(k);
  }
}

}  // namespace glim::cuda
