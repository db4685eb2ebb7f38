// out = the sum of all rows.
// Accumulation rule: a block adds chunks of kRowsPerChunk rows in order in f64 and leaves them in the workspace [chunks, N]; a second
// kernel adds the chunks in order. No atomics: the same bits every time.
#include "ops/device/device.cuh"

namespace glim::cuda {
namespace {

constexpr int64_t kRowsPerChunk = 128;  // the workspace is that of the CPU kernel, which cuts rows alike
constexpr int kColumns = 128;

// Block (x, chunk): kColumns threads, a pack of columns each.
template <int N, class T>
__global__ void __launch_bounds__(kColumns) sum_chunks(Rows<const T> in, int64_t rows, int64_t width, double* partials) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x) * N;
  if (column >= width) return;
  const int count = column + N <= width ? N : static_cast<int>(width - column);
  const int64_t chunks = (rows + kRowsPerChunk - 1) / kRowsPerChunk;
  for (int64_t chunk = blockIdx.y; chunk < chunks; chunk += gridDim.y) {
    const int64_t begin = chunk * kRowsPerChunk, end = begin + kRowsPerChunk < rows ? begin + kRowsPerChunk : rows;
    double sum[N] = {};
    if (count == N) {
#pragma unroll 4
      for (int64_t row = begin; row < end; ++row) {
        const Pack<T, N> pack = load<N>(in[row] + column);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += static_cast<double>(widen(pack.at[j]));
      }
    } else {
      for (int64_t row = begin; row < end; ++row) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
          if (j < count) sum[j] += static_cast<double>(widen(in[row][column + j]));
        }
      }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (j < count) partials[chunk * width + column + j] = sum[j];
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kColumns) add_chunks(const double* partials, int64_t chunks, int64_t width, T* out) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  if (column >= width) return;
  double sum = 0;
#pragma unroll 8
  for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += partials[chunk * width + column];
  out[column] = narrow<T>(static_cast<Accumulate<T>>(sum));
}

}  // namespace

void sum_rows(const KernelArgs& k) {
  const int64_t rows = k.in[0].type.shape[0], width = k.in[0].type.shape[1], chunks = (rows + kRowsPerChunk - 1) / kRowsPerChunk;
  if (width == 0) return;
  auto* partials = reinterpret_cast<double*>(k.workspace.data());
  const auto blocks_of = [](int64_t columns) { return static_cast<unsigned>((columns + kColumns - 1) / kColumns); };
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (chunks > 0) {
      const Rows<const T> in = rows_of<const T>(k.in[0]);
      const auto in_y = static_cast<unsigned>(std::min<int64_t>(chunks, 65535));
      constexpr int N = kPackOf<T>;
      if (takes_packs(in, rows, N))
        sum_chunks<N, T><<<dim3(blocks_of((width + N - 1) / N), in_y), kColumns, 0, stream(k)>>>(in, rows, width, partials);
      else
        sum_chunks<1, T><<<dim3(blocks_of(width), in_y), kColumns, 0, stream(k)>>>(in, rows, width, partials);
    }
    add_chunks<T><<<blocks_of(width), kColumns, 0, stream(k)>>>(partials, chunks, width, k.out[0].as<T>());
  });
}

}  // namespace glim::cuda
