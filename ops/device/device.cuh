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

// N elements that one instruction loads or stores.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};
template <int kBytes>
struct WordOf;
template <>
struct WordOf<16> {
  using Type = uint4;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<4> {
  using Type = uint32_t;
};
template <>
struct WordOf<2> {
  using Type = uint16_t;
};
template <int N, class T>
__device__ inline Pack<std::remove_const_t<T>, N> load(T* from) {
  using Word = typename WordOf<sizeof(T) * N>::Type;
  Pack<std::remove_const_t<T>, N> pack;
  *reinterpret_cast<Word*>(&pack) = *reinterpret_cast<const Word*>(from);
  return pack;
}
template <int N, class T>
__device__ inline void store(T* to, const Pack<T, N>& pack) {
  using Word = typename WordOf<sizeof(T) * N>::Type;
  *reinterpret_cast<Word*>(to) = *reinterpret_cast<const Word*>(&pack);
}
// Elements of the widest of these types in 16 bytes.
template <class... Ts>
constexpr int kPackOf = static_cast<int>(16 / std::max({sizeof(Ts)...}));
// Whether every row can be read (written) in packs of n elements.
template <class T>
bool takes_packs(const Rows<T>& rows, int64_t num_rows, int n) {
  return reinterpret_cast<uintptr_t>(rows.data) % (static_cast<size_t>(n) * sizeof(T)) == 0 && (num_rows <= 1 || rows.stride % n == 0);
}

// What an element function with two outputs returns.
template <class T>
struct Both {
  T first, second;
};

// All reads of a pack come before its writes, so that outputs may lie on operands.
template <int N, class F, class Out, class... In>
__device__ inline void map_pack(const F& f, Out* first, Out* second, const Pack<In, N>&... in) {
  Pack<Out, N> a, b;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const auto result = f(in.at[i]...);
    if constexpr (std::is_same_v<std::remove_const_t<decltype(result)>, Both<Out>>) {
      a.at[i] = result.first;
      b.at[i] = result.second;
    } else {
      a.at[i] = result;
    }
  }
  store<N>(first, a);
  if constexpr (std::is_same_v<decltype(f(in.at[0]...)), Both<Out>>) store<N>(second, b);
}

// Threads are x along columns (a pack each) and y along rows.
template <int N, class F, class Out, class... In>
__global__ void map_rows(F f, int64_t rows, int64_t width, Rows<Out> first, Rows<Out> second, Rows<In>... in) {
  for (int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows;
       row += static_cast<int64_t>(gridDim.y) * blockDim.y) {
    for (int64_t column = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N; column < width;
         column += static_cast<int64_t>(gridDim.x) * blockDim.x * N) {
      if (column + N <= width) {
        map_pack<N>(f, first[row] + column, second[row] + column, load<N>(in[row] + column)...);
      } else {
        for (int64_t j = column; j < width; ++j) map_pack<1>(f, first[row] + j, second[row] + j, load<1>(in[row] + j)...);
      }
    }
  }
}

// A grid over rows of `items` threads each; kernels loop by its size where it is smaller than the work.
struct RowGrid {
  dim3 blocks, threads;
  RowGrid(int64_t rows, int64_t items) {
    constexpr unsigned kThreads = 256;
    unsigned x = 1;
    while (x < kThreads && x < items) x *= 2;
    threads = dim3(x, kThreads / x);
    blocks = dim3(static_cast<unsigned>(std::clamp<int64_t>((items + x - 1) / x, 1, 1 << 20)),
                  static_cast<unsigned>(std::clamp<int64_t>((rows + threads.y - 1) / threads.y, 1, 65535)));
  }
};

template <class F, class Out, class... In>
void launch_map(cudaStream_t stream, F f, const Shape& shape, Rows<Out> first, Rows<Out> second, Rows<In>... in) {
  if (shape.numel() == 0) return;
  const auto dense = [&](const auto& each) { return shape.rows() == 1 || each.stride == shape.last(); };
  const bool flat = dense(first) && dense(second) && (dense(in) && ... && true);
  const int64_t rows = flat ? 1 : shape.rows(), width = flat ? shape.numel() : shape.last();
  constexpr int N = kPackOf<Out, In...>;
  const auto packed = [&](const auto& each) { return takes_packs(each, rows, N); };
  if (packed(first) && packed(second) && (packed(in) && ... && true)) {
    const RowGrid grid(rows, (width + N - 1) / N);
    map_rows<N, F, Out, In...><<<grid.blocks, grid.threads, 0, stream>>>(f, rows, width, first, second, in...);
  } else {
    const RowGrid grid(rows, width);
    map_rows<1, F, Out, In...><<<grid.blocks, grid.threads, 0, stream>>>(f, rows, width, first, second, in...);
  }
}

// out = f(in...) for every element, all of one shape; `out` may lie on an operand. f takes and returns stored types.
template <class T, class F, class... In>
void map(cudaStream_t stream, F f, const TensorView& out, const Rows<In>&... in) {
  launch_map(stream, f, out.type.shape, rows_of<T>(out), rows_of<T>(out), in...);
}
// The same for two outputs: f returns Both<T>.
template <class T, class F, class... In>
void map_both(cudaStream_t stream, F f, const TensorView& first, const TensorView& second, const Rows<In>&... in) {
  launch_map(stream, f, first.type.shape, rows_of<T>(first), rows_of<T>(second), in...);
}

// Reports a wrong value in the data; of several, the one at the lowest position. `slot` comes from KernelContext::data_fault.
__device__ inline void report_value(uint64_t* slot, int64_t position, int32_t value) {
  if (slot == nullptr) return;
  atomicMin(reinterpret_cast<unsigned long long*>(slot), static_cast<unsigned long long>(position) << 32 | static_cast<uint32_t>(value));
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
