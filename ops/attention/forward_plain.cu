// The forward pass on CUDA cores: a block takes one tile of queries of one head.
#include "ops/attention/plain.cuh"

namespace glim::cuda {
namespace {

template <class T, int kTile, int kColumns>
__global__ void __launch_bounds__(kPlainThreads) forward(AttentionShape shape, ForwardArgs<T> args) {
  using A = Accumulate<T>;
  using Tiles = PlainTiles<A, kTile, kColumns>;
  constexpr int kRows = Tiles::kRowsPerThread;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ TileSpans<kTile> spans;
  const int d = shape.head_size, stride = kTile * Tiles::pitch(d);
  A *const q = reinterpret_cast<A*>(memory), *const k = q + stride, *const v = k + stride, *const weights = v + stride;
  const int head = static_cast<int>(blockIdx.x) % shape.num_heads, kv_head = head / shape.group();
  const int first = static_cast<int>((gridDim.x - 1 - blockIdx.x) / shape.num_heads) * kTile;
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  Tiles::load(q, args.q, head, d, first, {0, shape.rows});
  spans.template fill<Side::kQueries>(shape, first);
  const A scale = static_cast<A>(shape.scale);
  A sums[kRows][kColumns] = {}, top[kRows], sum[kRows] = {};
  for (A& each : top) each = -INFINITY;

  for (int from = spans.any.begin; from < spans.any.end; from += kTile) {
    __syncthreads();
    Tiles::load(k, args.k, kv_head, d, from, spans.any);
    Tiles::load(v, args.v, kv_head, d, from, spans.any);
    __syncthreads();
    A s[kRows][kRows];
    Tiles::scores(s, q, k, d);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const RowSpan seen = spans.of[y + kSide * i];
      A next = top[i];
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const int key = from + x + kSide * j;
        s[i][j] = key >= seen.begin && key < seen.end ? s[i][j] * scale : -INFINITY;
        next = max(next, s[i][j]);
      }
      next = lanes_max<kSide>(next);
      const A base = next == -INFINITY ? A(0) : next, shrink = exp(top[i] - base);
      A total = 0;
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const A power = exp(s[i][j] - base);
        weights[(y + kSide * i) * Tiles::kWeightPitch + x + kSide * j] = power;
        total += power;
      }
      sum[i] = sum[i] * shrink + total;
      top[i] = next;
#pragma unroll
      for (A& each : sums[i]) each *= shrink;
    }
    __syncwarp();
    Tiles::add_weighted(sums, weights, v, d);
  }

  A inverse[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const A total = lanes_sum<kSide>(sum[i]);
    const int row = y + kSide * i;
    const bool is_outside = spans.of[row].begin >= spans.of[row].end;
    inverse[i] = 1 / total;
    if (x == 0 && first + row < shape.rows) args.lse[first + row][head] = is_outside ? A(0) : top[i] + log(total);
  }
  Tiles::store(sums, spans, inverse, args.out, head, d, first, shape.rows);
}

template <class T, class A, int kTile, int kColumns>
void launch(PlainTiles<A, kTile, kColumns>, const AttentionShape& shape, const ForwardArgs<T>& args, cudaStream_t stream) {
  using Tiles = PlainTiles<A, kTile, kColumns>;
  const size_t bytes = 3 * Tiles::tile_bytes(shape.head_size) + Tiles::kWeightBytes;
  cudaFuncSetAttribute(forward<T, kTile, kColumns>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  const auto blocks = static_cast<unsigned>((shape.rows + kTile - 1) / kTile * shape.num_heads);
  forward<T, kTile, kColumns><<<blocks, kPlainThreads, bytes, stream>>>(shape, args);
}

}  // namespace

template <class T>
void plain_forward(const AttentionShape& shape, const ForwardArgs<T>& args, cudaStream_t stream) {
  with_plain_tiles<T>(shape.head_size, [&](auto tiles) { launch<T>(tiles, shape, args, stream); });
}
template void plain_forward<double>(const AttentionShape&, const ForwardArgs<double>&, cudaStream_t);
template void plain_forward<float>(const AttentionShape&, const ForwardArgs<float>&, cudaStream_t);
template void plain_forward<__nv_bfloat16>(const AttentionShape&, const ForwardArgs<__nv_bfloat16>&, cudaStream_t);

}  // namespace glim::cuda
