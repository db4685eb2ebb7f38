#pragma once
// Shared shape of the CUDA kernels: dtype dispatch, accumulation types, strided rows, element-by-element launches, sums over a block.
// CUDA files do not include fmt, so neither ops/define.h nor ops/cpu.h. A launcher allocates nothing and waits for nothing;
// the executor looks for launch errors after each one, and adds the op's name.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ops/accumulate.h"
#include "ops/kernel_context.h"

template <>
struct glim::AccumulateOf<__nv_bfloat16> {
  using Type = float;
};

namespace glim::cuda {

template <class T>
__device__ inline Accumulate<T> widen(T value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __bfloat162float(value);
  else
    return value;
}
template <class T, class A>
__device__ inline T narrow(A value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

template <class T>
struct Tag {
  using Type = T;
};
// Calls f(Tag<double>{}), f(Tag<float>{}) or f(Tag<__nv_bfloat16>{}).
template <class F>
void dispatch_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF64: return f(Tag<double>{});
    case DType::kF32: return f(Tag<float>{});
    case DType::kBF16: return f(Tag<__nv_bfloat16>{});
    default: report_bug(__FILE__, __LINE__, "dispatch_float", "not a floating-point type");
  }
}

inline cudaStream_t stream(const KernelArgs& k) { return static_cast<cudaStream_t>(k.context.stream()); }

// Element (i, j) is at data[i * stride + j].
template <class T>
struct Rows {
  T* data;
  int64_t stride;
  __device__ T* operator[](int64_t row) const { return data + row * stride; }
};
template <class T>
Rows<T> rows_of(const TensorView& view) {
  return {view.as<std::remove_const_t<T>>(), view.type.shape.rank == 2 ? view.row_stride : view.type.shape.last()};
}

constexpr int kWarp = 32;
// Whole warps, enough for one thread per element, within [32, most].
inline int threads_for(int64_t elements, int most) {
  return static_cast<int>(std::clamp<int64_t>((elements + kWarp - 1) / kWarp * kWarp, kWarp, most));
}

template <class F, class T, class... In>
__global__ void map_elements(F f, int64_t total, int64_t width, Rows<T> out, Rows<In>... in) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += step) {
    const int64_t row = i / width, column = i - row * width;
    out[row][column] = f(in[row][column]...);
  }
}

// out = f(in...) for every element, all of one shape; `out` may lie on an operand. f takes and returns stored types.
template <class T, class F, class... In>
void map(cudaStream_t stream, F f, const TensorView& out, const Rows<In>&... in) {
  const int64_t total = out.type.shape.numel();
  if (total == 0) return;
  constexpr int kThreads = 256, kPerThread = 4;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((total + kThreads * kPerThread - 1) / (kThreads * kPerThread), 1 << 16));
  map_elements<F, T, In...><<<blocks, kThreads, 0, stream>>>(f, total, out.type.shape.last(), rows_of<T>(out), in...);
}

// The sum over the block, in a fixed order; every thread gets it. All threads call it; blocks consist of whole warps.
template <class S>
__device__ S block_sum(S value) {
  __shared__ S partial[kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffU, value, offset);
  __syncthreads();  // the last call's partial sums may still be read
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  S sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) sum += partial[warp];
  return sum;
}

}  // namespace glim::cuda
