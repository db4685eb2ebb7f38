// out[n] = the sum of in[r] over the r with indices[r] == n: the backward pass of embedding.
// The rows of each n form a chain in the workspace: first[n] is the lowest r, next[r] the next r of the same n, -1 the end. A thread per
// r finds both by comparing its index with all others, a tile in shared memory at a time: R^2 integer comparisons, which are little
// beside writing [num_rows, D] (8,192 rows: 67 million; 202,048 x 6,656 outputs: 1.3 billion).
// Accumulation rule: one thread sums an output element along its chain, in order of r, in f64. No atomics: the same bits every time.
#include "ops/scatter_add_rows/scatter_add_rows_attrs.h"

#include "ops/device/device.cuh"

namespace glim::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    link_rows(const int32_t* indices, int32_t num_in, int64_t num_rows, int64_t skip, int32_t* first, int32_t* next, uint64_t* fault) {
  __shared__ int32_t tile[kThreads];
  const int32_t r = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  const int32_t mine = r < num_in ? indices[r] : -1;
  const bool in_range = mine >= 0 && mine < num_rows, is_used = r < num_in && in_range && mine != skip;
  if (r < num_in && !in_range && mine != skip) report_value(fault, r, mine);
  bool is_first = true;
  int32_t following = -1;
  for (int32_t begin = 0; begin < num_in; begin += kThreads) {
    __syncthreads();
    const int32_t at = begin + static_cast<int32_t>(threadIdx.x);
    tile[threadIdx.x] = at < num_in ? indices[at] : -1;
    __syncthreads();
    if (!is_used) continue;
#pragma unroll 8
    for (int32_t i = 0; i < kThreads; ++i) {
      if (tile[i] != mine) continue;
      if (begin + i < r) is_first = false;
      if (begin + i > r && following < 0) following = begin + i;
    }
  }
  if (!is_used) return;
  next[r] = following;
  if (is_first) first[mine] = r;
}

// Threads are x along columns (a pack each) and y along output rows.
template <int N, class T>
__global__ void add_chains(Rows<const T> in, const int32_t* first, const int32_t* next, Rows<T> out, int64_t rows, int64_t width) {
  for (int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows;
       row += static_cast<int64_t>(gridDim.y) * blockDim.y) {
    for (int64_t column = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N; column < width;
         column += static_cast<int64_t>(gridDim.x) * blockDim.x * N) {
      const int count = column + N <= width ? N : static_cast<int>(width - column);
      double sum[N] = {};
      for (int32_t r = first[row]; r >= 0; r = next[r]) {
        if (count == N) {
          const Pack<T, N> from = load<N>(in[r] + column);
#pragma unroll
          for (int i = 0; i < N; ++i) sum[i] += static_cast<double>(widen(from.at[i]));
        } else {
#pragma unroll
          for (int i = 0; i < N; ++i) {
            if (i < count) sum[i] += static_cast<double>(widen(in[r][column + i]));
          }
        }
      }
      Pack<T, N> to;
#pragma unroll
      for (int i = 0; i < N; ++i) to.at[i] = narrow<T>(static_cast<Accumulate<T>>(sum[i]));
      if (count == N) {
        store<N>(out[row] + column, to);
      } else {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          if (i < count) out[row][column + i] = to.at[i];
        }
      }
    }
  }
}

}  // namespace

void scatter_add_rows(const KernelArgs& k) {
  const auto [num_rows, skip] = k.attrs<ops::ScatterAddRowsAttrs>();
  const auto num_in = static_cast<int32_t>(k.in[0].type.shape[0]);
  const int64_t width = k.out[0].type.shape[1];
  auto* const first = reinterpret_cast<int32_t*>(k.workspace.data());  // [num_rows], then next [R]
  int32_t* const next = first + num_rows;
  uint64_t* const fault = k.context.data_fault("index", num_rows);
  cudaMemsetAsync(first, 0xff, static_cast<size_t>(num_rows) * sizeof(int32_t), stream(k));
  if (num_in > 0) {
    const auto blocks = static_cast<unsigned>((num_in + kThreads - 1) / kThreads);
    link_rows<<<blocks, kThreads, 0, stream(k)>>>(k.in[1].as<int32_t>(), num_in, num_rows, skip, first, next, fault);
  }
  if (num_rows == 0 || width == 0) return;
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const Rows<const T> in = rows_of<const T>(k.in[0]);
    const Rows<T> out = rows_of<T>(k.out[0]);
    constexpr int N = kPackOf<T>;
    if (takes_packs(in, num_in, N) && takes_packs(out, num_rows, N)) {
      const RowGrid grid(num_rows, (width + N - 1) / N);
      add_chains<N, T><<<grid.blocks, grid.threads, 0, stream(k)>>>(in, first, next, out, num_rows, width);
    } else {
      const RowGrid grid(num_rows, width);
      add_chains<1, T><<<grid.blocks, grid.threads, 0, stream(k)>>>(in, first, next, out, num_rows, width);
    }
  });
}

}  // namespace glim::cuda
