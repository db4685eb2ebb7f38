// out = in weight^T + bias. The bias goes in first and the product is added to it, so that the result is rounded once.
#include "ops/device/device.cuh"

namespace glim::cuda {
namespace {

template <class T, class C>
struct Widened {
  __device__ C operator()(T bias) const { return narrow<C>(widen(bias)); }
};

template <class T, class C>
void repeat_bias(const KernelArgs& k) {
  map<C>(stream(k), Widened<T, C>{}, k.out[0], Rows<const T>{k.in[2].as<T>(), 0});  // every row is the same one
}

}  // namespace

void linear(const KernelArgs& k) {
  const TensorView &in = k.in[0], &weight = k.in[1], &bias = k.in[2], &out = k.out[0];
  if (bias.present()) {
    dispatch_float(in.type.dtype, [&](auto tag) {
      using T = typename decltype(tag)::Type;
      if (out.type.dtype == in.type.dtype)
        repeat_bias<T, T>(k);
      else
        repeat_bias<T, Accumulate<T>>(k);
    });
  }
  k.context.product({.rows = out.type.shape[0],
                     .columns = out.type.shape[1],
                     .depth = in.type.shape[1],
                     .beta = bias.present() ? 1.0 : 0.0,
                     .dtype = in.type.dtype,
                     .a = {in.data, in.row_stride, false},
                     .b = {weight.data, weight.row_stride, true},
                     .c = out.data,
                     .c_dtype = out.type.dtype,
                     .c_row_stride = out.row_stride});
}

}  // namespace glim::cuda
