// The sum of the squares of all elements of all operands.
// Accumulation rule: a block squares and adds a tile in f64 (no f32 gradient can overflow it) and leaves the sum in the workspace
// [tiles]; then one block adds the tiles. Fixed orders, no atomics: the same bits every time.
#include "ops/device/tensor_list.cuh"
#include "ops/sum_of_squares/tiles.h"

namespace glim::cuda {
namespace {

constexpr int kThreads = 256, kFinalThreads = 1024;
constexpr int64_t kColumns = 8 * ops::kTile;  // of a tile here; the workspace has room for smaller ones

struct Squared {
  const void* data;
  int64_t rows, width, stride;  // a contiguous tensor is one row
  int64_t first_tile;
  int32_t rows_per_tile, tiles_per_row;
  DType dtype;
};

template <int N, class T>
__device__ double sum_of_run(const T* x, int64_t length) {
  double sum = 0;
  const int64_t whole = length / N * N;
#pragma unroll 8
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < whole; i += kThreads * N) {
    const Pack<T, N> pack = load<N>(x + i);
#pragma unroll
    for (int j = 0; j < N; ++j) sum += static_cast<double>(widen(pack.at[j])) * static_cast<double>(widen(pack.at[j]));
  }
  for (int64_t i = whole + threadIdx.x; i < length; i += kThreads)
    sum += static_cast<double>(widen(x[i])) * static_cast<double>(widen(x[i]));
  return sum;
}

template <class T>
__device__ double sum_of_tile(const Squared& tensor, int64_t tile) {
  const int64_t begin = tile / tensor.tiles_per_row * tensor.rows_per_tile, column = tile % tensor.tiles_per_row * kColumns;
  const int64_t end = begin + tensor.rows_per_tile < tensor.rows ? begin + tensor.rows_per_tile : tensor.rows;
  const int64_t length = tensor.width - column < kColumns ? tensor.width - column : kColumns;
  constexpr int N = 16 / sizeof(T);
  double sum = 0;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(tensor.data) + row * tensor.stride + column;
    sum += reinterpret_cast<uintptr_t>(x) % 16 == 0 ? sum_of_run<N>(x, length) : sum_of_run<1>(x, length);
  }
  return sum;
}

// One block per tile, from the first tile of the list on.
__global__ void __launch_bounds__(kThreads) sum_tiles(const __grid_constant__ TensorList<Squared> list, double* partials) {
  const int64_t at = list.entries[0].first_tile + blockIdx.x;
  const Squared& tensor = list.of_tile(at);
  const int64_t tile = at - tensor.first_tile;
  const double mine = tensor.dtype == DType::kF64   ? sum_of_tile<double>(tensor, tile)
                      : tensor.dtype == DType::kF32 ? sum_of_tile<float>(tensor, tile)
                                                    : sum_of_tile<__nv_bfloat16>(tensor, tile);
  const double sum = block_sum(mine);
  if (threadIdx.x == 0) partials[at] = sum;
}

template <class A>
__global__ void __launch_bounds__(kFinalThreads) add_tiles(const double* partials, int64_t tiles, A* out) {
  double sum = 0;
#pragma unroll 4
  for (int64_t tile = threadIdx.x; tile < tiles; tile += kFinalThreads) sum += partials[tile];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *out = static_cast<A>(sum);
}

Squared squared(const TensorView& in, int64_t first_tile) {
  const Shape& shape = in.type.shape;
  if (in.contiguous()) {
    const int64_t tiles = (shape.numel() + kColumns - 1) / kColumns;
    return {in.data, 1, shape.numel(), shape.numel(), first_tile, 1, static_cast<int32_t>(tiles), in.type.dtype};
  }
  return {in.data,
          shape[0],
          shape[1],
          in.row_stride,
          first_tile,
          static_cast<int32_t>(ops::rows_per_task(shape)),
          static_cast<int32_t>((shape[1] + kColumns - 1) / kColumns),
          in.type.dtype};
}

}  // namespace

void sum_of_squares(const KernelArgs& k) {
  auto* const partials = reinterpret_cast<double*>(k.workspace.data());
  TensorList<Squared> list;
  int64_t tiles = 0, launched = 0;
  const auto launch = [&] {
    if (list.count > 0) sum_tiles<<<static_cast<unsigned>(tiles - launched), kThreads, 0, stream(k)>>>(list, partials);
    list.count = 0;
    launched = tiles;
  };
  for (const TensorView& in : k.in) {
    if (in.type.shape.numel() == 0) continue;
    const Squared entry = squared(in, tiles);
    list.entries[list.count++] = entry;
    tiles += (entry.rows + entry.rows_per_tile - 1) / entry.rows_per_tile * entry.tiles_per_row;
    if (list.count == TensorList<Squared>::kCapacity) launch();
  }
  launch();
  if (k.out[0].type.dtype == DType::kF64)
    add_tiles<<<1, kFinalThreads, 0, stream(k)>>>(partials, tiles, k.out[0].as<double>());
  else
    add_tiles<<<1, kFinalThreads, 0, stream(k)>>>(partials, tiles, k.out[0].as<float>());
}

}  // namespace glim::cuda
