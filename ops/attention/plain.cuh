#pragma once
// Attention on CUDA cores: tiles in shared memory in the type of arithmetic, 16 x 16 threads. Thread (y, x) has rows y, y + 16, ... of the
// kept tile, and columns x, x + 16, ... of scores and sums, so that a row belongs to half a warp.
#include "ops/attention/attention.cuh"

namespace glim::cuda {

constexpr int kSide = 16, kPlainThreads = kSide * kSide;

// kTile rows of either side; a thread sums over kColumns columns of a head.
template <class A, int kTile, int kColumns>
struct PlainTiles {
  static constexpr int kRowsPerThread = kTile / kSide, kMaxHead = kSide * kColumns, kWeightPitch = kTile + 1;
  static constexpr size_t kWeightBytes = sizeof(A) * kTile * kWeightPitch;
  [[nodiscard]] __host__ __device__ static int padded(int head_size) { return (head_size + kSide - 1) / kSide * kSide; }
  // Odd: threads of different rows read different banks.
  [[nodiscard]] __host__ __device__ static int pitch(int head_size) { return padded(head_size) + 1; }
  [[nodiscard]] __host__ __device__ static size_t tile_bytes(int head_size) { return sizeof(A) * kTile * pitch(head_size); }

  // Rows [first, first + kTile) of a head; rows outside of `valid` and columns past the head size become 0.
  template <class T>
  __device__ static void load(A* tile, const Rows<const T>& rows, int head, int head_size, int first, RowSpan valid) {
    const int width = padded(head_size);
    for (int i = threadIdx.x; i < kTile * width; i += kPlainThreads) {
      const int row = i / width, column = i % width;
      const bool exists = first + row >= valid.begin && first + row < valid.end && column < head_size;
      tile[row * pitch(head_size) + column] = exists ? widen(rows[first + row][head * head_size + column]) : A(0);
    }
  }
  // d[i][j] = (row y + 16 i of a) . (row x + 16 j of b)
  __device__ static void scores(A (&d)[kRowsPerThread][kRowsPerThread], const A* a, const A* b, int head_size) {
    const int x = threadIdx.x % kSide, y = threadIdx.x / kSide, p = pitch(head_size);
    for (auto& each : d)
      for (A& value : each) value = 0;
    for (int c = 0; c < head_size; ++c) {
#pragma unroll
      for (int i = 0; i < kRowsPerThread; ++i) {
#pragma unroll
        for (int j = 0; j < kRowsPerThread; ++j) d[i][j] += a[(y + kSide * i) * p + c] * b[(x + kSide * j) * p + c];
      }
    }
  }
  // sums[i][c] += (row y + 16 i of weights [kTile, kTile]) . (column x + 16 c of tile)
  __device__ static void add_weighted(A (&sums)[kRowsPerThread][kColumns], const A* weights, const A* tile, int head_size) {
    const int x = threadIdx.x % kSide, y = threadIdx.x / kSide, p = pitch(head_size);
    for (int r = 0; r < kTile; ++r) {
      A w[kRowsPerThread];
#pragma unroll
      for (int i = 0; i < kRowsPerThread; ++i) w[i] = weights[(y + kSide * i) * kWeightPitch + r];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (kSide * c >= head_size) break;
        const A value = tile[r * p + x + kSide * c];
#pragma unroll
        for (int i = 0; i < kRowsPerThread; ++i) sums[i][c] += w[i] * value;
      }
    }
  }
  template <class T>
  __device__ static void store(const A (&sums)[kRowsPerThread][kColumns], const TileSpans<kTile>& spans, const A (&factors)[kRowsPerThread],
                               const Rows<T>& out, int head, int head_size, int first, int num_rows) {
    const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i) {
      const int row = y + kSide * i;
      if (first + row >= num_rows) continue;
      const bool is_outside = spans.of[row].begin >= spans.of[row].end;
      T* const to = out[first + row] + head * head_size;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (x + kSide * c < head_size) to[x + kSide * c] = narrow<T>(is_outside ? A(0) : sums[i][c] * factors[i]);
      }
    }
  }
};

// Calls f(PlainTiles<...>{}) with tiles of which four fit into shared memory.
template <class T, class F>
void with_plain_tiles(int head_size, F&& f) {
  if constexpr (std::is_same_v<T, double>)
    f(PlainTiles<double, 16, 16>{});
  else if (head_size <= 128)
    f(PlainTiles<float, 64, 8>{});
  else
    f(PlainTiles<float, 32, 16>{});
}

}  // namespace glim::cuda
