// out = the sum of all rows.
// Accumulation rule: a block adds chunks of kRowsPerChunk rows in order in f64 and leaves them in the workspace [chunks, N]; a second
// kernel adds the chunks in order. No atomics: the same bits every time.
#include "ops/device/device.cuh"

namespace glim::cuda {
namespace {

constexpr int64_t kRowsPerChunk = 128;  // the workspace is that of the CPU kernel, which cuts rows alike
constexpr int kColumns = 128;

// Block (x, chunk): 128 columns, one thread each.
template <class T>
__global__ void __launch_bounds__(kColumns) sum_chunks(Rows<const T> in, int64_t rows, int64_t width, double* partials) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  if (column >= width) return;
  const int64_t chunks = (rows + kRowsPerChunk - 1) / kRowsPerChunk;
  for (int64_t chunk = blockIdx.y; chunk < chunks; chunk += gridDim.y) {
    const int64_t begin = chunk * kRowsPerChunk, end = begin + kRowsPerChunk < rows ? begin + kRowsPerChunk : rows;
    double sum = 0;
#pragma unroll 8
    for (int64_t row = begin; row < end; ++row) sum += static_cast<double>(widen(in[row][column]));
    partials[chunk * width + column] = sum;
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
  const auto columns = static_cast<unsigned>((width + kColumns - 1) / kColumns);
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (chunks > 0) {
      const dim3 blocks(columns, static_cast<unsigned>(std::min<int64_t>(chunks, 65535)));
      sum_chunks<T><<<blocks, kColumns, 0, stream(k)>>>(rows_of<const T>(k.in[0]), rows, width, partials);
    }
    add_chunks<T><<<columns, kColumns, 0, stream(k)>>>(partials, chunks, width, k.out[0].as<T>());
  });
}

}  // namespace glim::cuda
