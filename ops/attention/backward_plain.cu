// The backward pass on CUDA cores, cut as in backward_tensor.cu: a block keeps one tile of keys (and goes over the queries of all heads
// of the group) or of queries.
#include "ops/attention/plain.cuh"

namespace glim::cuda {
namespace {

template <class T, int kTile, int kColumns, Side kKept>
__global__ void __launch_bounds__(kPlainThreads) backward(AttentionShape shape, BackwardArgs<T> args) {
  using A = Accumulate<T>;
  using Tiles = PlainTiles<A, kTile, kColumns>;
  constexpr int kRows = Tiles::kRowsPerThread;
  constexpr bool kKeysKept = kKept == Side::kKeys;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ TileSpans<kTile> spans;
  __shared__ RowStatistics<A> statistics[kTile];  // of the queries, on whichever side they are
  const int d = shape.head_size, stride = kTile * Tiles::pitch(d);
  A *const kept = reinterpret_cast<A*>(memory), *const kept_with_ct = kept + stride, *const passing = kept_with_ct + stride,
           *const passing_with_ct = passing + stride, *const p = passing_with_ct + stride, *const ds = p + kTile * Tiles::kWeightPitch;
  const int num_across = kKeysKept ? shape.num_kv_heads : shape.num_heads, across = static_cast<int>(blockIdx.x) % num_across;
  const int first = static_cast<int>(blockIdx.x) / num_across * kTile;
  const int kv_head = kKeysKept ? across : across / shape.group();
  const int first_head = kKeysKept ? across * shape.group() : across, end_head = first_head + (kKeysKept ? shape.group() : 1);
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  const auto load_statistics = [&](int head, int from, RowSpan valid) {
    for (int i = threadIdx.x; i < kTile; i += kPlainThreads) {
      const bool exists = from + i >= valid.begin && from + i < valid.end;
      statistics[i] = exists ? args.statistics[static_cast<int64_t>(head) * shape.rows + from + i] : RowStatistics<A>{0, 0};
    }
  };
  Tiles::load(kept, kKeysKept ? args.k : args.q, across, d, first, {0, shape.rows});
  Tiles::load(kept_with_ct, kKeysKept ? args.v : args.ct, across, d, first, {0, shape.rows});
  if (!kKeysKept) load_statistics(across, first, {0, shape.rows});
  spans.template fill<kKept>(shape, first);
  const A scale = static_cast<A>(shape.scale);
  A sums[kRows][kColumns] = {}, value_sums[kKeysKept ? kRows : 1][kColumns] = {};

  for (int head = first_head; head < end_head; ++head) {
    for (int from = spans.any.begin; from < spans.any.end; from += kTile) {
      __syncthreads();
      Tiles::load(passing, kKeysKept ? args.q : args.k, kKeysKept ? head : kv_head, d, from, spans.any);
      Tiles::load(passing_with_ct, kKeysKept ? args.ct : args.v, kKeysKept ? head : kv_head, d, from, spans.any);
      if (kKeysKept) load_statistics(head, from, spans.any);
      __syncthreads();
      A s[kRows][kRows], dp[kRows][kRows];
      Tiles::scores(s, kept, passing, d);
      Tiles::scores(dp, kept_with_ct, passing_with_ct, d);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const RowSpan met = spans.of[y + kSide * i];
#pragma unroll
        for (int j = 0; j < kRows; ++j) {
          const int other = x + kSide * j, at = (y + kSide * i) * Tiles::kWeightPitch + other;
          const RowStatistics<A> query = statistics[kKeysKept ? other : y + kSide * i];
          const bool is_met = from + other >= met.begin && from + other < met.end;
          const A power = is_met ? exp(s[i][j] * scale - query.lse) : A(0);
          p[at] = power;
          ds[at] = is_met ? power * (dp[i][j] - query.delta) : A(0);
        }
      }
      __syncwarp();
      Tiles::add_weighted(sums, ds, passing, d);
      if constexpr (kKeysKept) Tiles::add_weighted(value_sums, p, passing_with_ct, d);
    }
  }
  A factors[kRows];
  for (A& each : factors) each = scale;
  Tiles::store(sums, spans, factors, kKeysKept ? args.ct_k : args.ct_q, across, d, first, shape.rows);
  if constexpr (kKeysKept) {
    for (A& each : factors) each = 1;
    Tiles::store(value_sums, spans, factors, args.ct_v, across, d, first, shape.rows);
  }
}

template <Side kKept, class T, class A, int kTile, int kColumns>
void launch(PlainTiles<A, kTile, kColumns>, const AttentionShape& shape, const BackwardArgs<T>& args, cudaStream_t stream) {
  using Tiles = PlainTiles<A, kTile, kColumns>;
  const size_t bytes = 4 * Tiles::tile_bytes(shape.head_size) + 2 * Tiles::kWeightBytes;
  cudaFuncSetAttribute(backward<T, kTile, kColumns, kKept>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  const int num_across = kKept == Side::kKeys ? shape.num_kv_heads : shape.num_heads;
  const auto blocks = static_cast<unsigned>((shape.rows + kTile - 1) / kTile * num_across);
  backward<T, kTile, kColumns, kKept><<<blocks, kPlainThreads, bytes, stream>>>(shape, args);
}

}  // namespace

template <class T>
void plain_backward(const AttentionShape& shape, const BackwardArgs<T>& args, cudaStream_t stream) {
  with_plain_tiles<T>(shape.head_size, [&](auto tiles) {
    launch<Side::kKeys, T>(tiles, shape, args, stream);
    launch<Side::kQueries, T>(tiles, shape, args, stream);
  });
}
template void plain_backward<double>(const AttentionShape&, const BackwardArgs<double>&, cudaStream_t);
template void plain_backward<float>(const AttentionShape&, const BackwardArgs<float>&, cudaStream_t);
template void plain_backward<__nv_bfloat16>(const AttentionShape&, const BackwardArgs<__nv_bfloat16>&, cudaStream_t);

}  // namespace glim::cuda
