#pragma once
// Matrix products of the CPU kernels, over tiles whose size depends only on the operands, so results have the same bits whatever the
// number of threads. Nothing here allocates: packing buffers and tiles are on the stack (below 1 MiB).
#include <cstdint>
#include <string>

#include "ops/kernel_context.h"

namespace glim::cpu {

// A row-major matrix, or its transpose: element (i, j) is data[i * row_stride + j], or data[j * row_stride + i].
template <class T>
struct Matrix {
  const T* data;
  int64_t row_stride;
  bool transposed = false;
};

enum class Into { kOverwrite, kAdd };

// c [m, n] (row-major) = alpha * a [m, k] * b [k, n], added to what c holds for kAdd. bf16 operands are widened tile by tile,
// products accumulate in f32 (f64 for f64), and a bf16 result is rounded once.
// (A, B, C): f64 x3, f32 x3, bf16 x3, (bf16, bf16, f32), (f32, bf16, bf16), (f32, bf16, f32).
template <class A, class B, class C>
void gemm(KernelContext& context, int64_t m, int64_t n, int64_t k, double alpha, Matrix<A> a, Matrix<B> b, C* c, int64_t c_stride,
          Into into);

// One product on the calling thread, for kernels that do their own tiling (attention): T is float or double, m, n <= 256.
template <class T>
void block_product(int64_t m, int64_t n, int64_t k, T alpha, Matrix<T> a, Matrix<T> b, T* c, int64_t c_stride, Into into);

// What multiplies and for which instructions it was compiled. Two builds that differ in it may differ in the last bits of a product.
std::string product_library();

}  // namespace glim::cpu
