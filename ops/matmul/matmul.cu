// out = accumulator + op(a) op(b): one product of the context; sums in f32 (f64 for f64), rounded once.
#include "ops/device/copy_view.h"
#include "ops/device/device.cuh"
#include "ops/matmul/matmul_attrs.h"

namespace glim::cuda {

void matmul(const KernelArgs& k) {
  const auto attrs = k.attrs<ops::MatmulAttrs>();
  const TensorView &a = k.in[0], &b = k.in[1], &accumulator = k.in[2], &out = k.out[0];
  // The plan makes them one buffer; only a caller without a plan passes two.
  if (accumulator.present()) copy_view(accumulator, out, k.context.stream());
  k.context.product({.rows = out.type.shape[0],
                     .columns = out.type.shape[1],
                     .depth = a.type.shape[attrs.transpose_a ? 0 : 1],
                     .beta = accumulator.present() ? 1.0 : 0.0,
                     .dtype = a.type.dtype,
                     .a = {a.data, a.row_stride, attrs.transpose_a != 0},
                     .b = {b.data, b.row_stride, attrs.transpose_b != 0},
                     .c = out.data,
                     .c_dtype = out.type.dtype,
                     .c_row_stride = out.row_stride});
}

}  // namespace glim::cuda
