// The forward pass on tensor cores: a block takes 128 queries of one head, a warpgroup 64 of them. Keys and values come in tiles, double
// buffered; the scores of tile j and the values of tile j - 1 are multiplied while the softmax of tile j is taken.
#include "ops/attention/wgmma.cuh"

namespace glim::cuda {
namespace {

constexpr int kThreads = 2 * kWarpgroup, kQueries = 128, kKeys = 128;

template <int kHead>
constexpr int kSharedBytes = kTileAlignment + kTileBytes<kQueries, kHead> + 4 * kTileBytes<kKeys, kHead>;

// Scores of keys that a thread's two rows do not see become -infinity. `first` is the key of column 0.
template <int N>
__device__ void mask(float (&s)[N / 2], const RowSpan (&seen)[2], int first) {
  const int key = first + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const int j = key + i / 4 * 8 + i % 2;
    const RowSpan& span = seen[i / 2 % 2];
    if (j < span.begin || j >= span.end) s[i] = -INFINITY;
  }
}

// Per row: the maximum so far of the raw scores, and this thread's part of the sum of the powers.
struct Softmax {
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

  // Turns scores into powers; `shrink` is what everything summed before must be multiplied by. factor = scale * log2(e) > 0.
  template <int N>
  __device__ void step(float (&s)[N], float factor, float (&shrink)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float next = top[row];
#pragma unroll
      for (int i = 2 * row; i < N; i += 4) next = fmaxf(next, fmaxf(s[i], s[i + 1]));
      next = lanes_max<4>(next);
      const float base = next == -INFINITY ? 0 : next * factor;  // a row that has seen nothing so far
      shrink[row] = power_of_two(top[row] * factor - base);
      top[row] = next;
      float total = 0;
#pragma unroll
      for (int i = 2 * row; i < N; i += 4) {
        s[i] = power_of_two(s[i] * factor - base);
        s[i + 1] = power_of_two(s[i + 1] * factor - base);
        total += s[i] + s[i + 1];
      }
      sum[row] = sum[row] * shrink[row] + total;
    }
  }
};

template <int kHead>
__global__ void __launch_bounds__(kThreads, 1) forward(AttentionShape shape, ForwardArgs<Bf16> args) {
  extern __shared__ unsigned char memory[];
  __shared__ TileSpans<kQueries> spans;
  const uint32_t q_tile = (shared_address(memory) + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
  const uint32_t k_tiles = q_tile + kTileBytes<kQueries, kHead>, v_tiles = k_tiles + 2 * kTileBytes<kKeys, kHead>;
  // The longest tiles first: with causal attention, the last queries.
  const int head = static_cast<int>(blockIdx.x) % shape.num_heads, kv_head = head / shape.group();
  const int first = static_cast<int>((gridDim.x - 1 - blockIdx.x) / shape.num_heads) * kQueries;
  const HeadRows q = head_of(args.q, head, shape.head_size), k = head_of(args.k, kv_head, shape.head_size),
                 v = head_of(args.v, kv_head, shape.head_size);

  load_tile<kQueries, kHead, kThreads>(q_tile, q, first, {0, shape.rows});
  spans.fill<Side::kQueries>(shape, first);
  const int tiles = spans.num_tiles(kKeys), begin = spans.any.begin;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, row = static_cast<int>(threadIdx.x) / kWarp * 16 + lane / 4;
  const RowSpan seen[2] = {spans.of[row], spans.of[row + 8]};
  const float factor = static_cast<float>(shape.scale * 1.4426950408889634);

  const auto k_tile = [&](int j) { return k_tiles + j % 2 * kTileBytes<kKeys, kHead>; };
  const auto v_tile = [&](int j) { return v_tiles + j % 2 * kTileBytes<kKeys, kHead>; };
  Softmax softmax;
  float s[kKeys / 2], sums[kHead / 2], shrink[2];
  uint32_t powers[kKeys / 4];
#pragma unroll
  for (float& each : sums) each = 0;

  const auto load_next = [&](int j) {  // keys of tile j + 1, values of tile j
    if (j + 1 < tiles) load_tile<kKeys, kHead, kThreads>(k_tile(j + 1), k, begin + (j + 1) * kKeys, spans.any);
    load_tile<kKeys, kHead, kThreads>(v_tile(j), v, begin + j * kKeys, spans.any);
    commit_copies();
  };
  const auto take_softmax = [&](int j) {
    const int key = begin + j * kKeys;
    if (spans.needs_mask(key, key + kKeys)) mask<kKeys>(s, seen, key);
    softmax.step(s, factor, shrink);
  };

  if (tiles > 0) {
    load_tile<kKeys, kHead, kThreads>(k_tile(0), k, begin, spans.any);
    commit_copies();
    wait_for_copies();
    __syncthreads();
    load_next(0);
    begin_products();
    scores<kQueries, kKeys, kHead>(s, q_tile, k_tile(0));
    commit_products();
    wait_for_products<0>();
    keep_registers(s);
    take_softmax(0);
    pack_accumulators<kKeys>(s, powers);
#pragma unroll 1
    for (int j = 1; j < tiles; ++j) {
      wait_for_copies();
      __syncthreads();
      load_next(j);
      keep_registers(s);
      keep_registers(sums);
      keep_registers(powers);
      begin_products();
      scores<kQueries, kKeys, kHead>(s, q_tile, k_tile(j));
      commit_products();
      add_weighted<kKeys, kHead>(sums, powers, v_tile(j - 1));
      commit_products();
      wait_for_products<1>();
      keep_registers(s);
      take_softmax(j);
      wait_for_products<0>();
      keep_registers(sums);
#pragma unroll
      for (int i = 0; i < kHead / 2; ++i) sums[i] *= shrink[i / 2 % 2];
      pack_accumulators<kKeys>(s, powers);
    }
    wait_for_copies();
    __syncthreads();
    keep_registers(sums);
    keep_registers(powers);
    begin_products();
    add_weighted<kKeys, kHead>(sums, powers, v_tile(tiles - 1));
    commit_products();
    wait_for_products<0>();
    keep_registers(sums);
  } else {
    commit_copies();
    wait_for_copies();  // the queries' tile is used for the output
    __syncthreads();
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = lanes_sum<4>(softmax.sum[half]);
    const bool is_outside = seen[half].begin >= seen[half].end;
    const float inverse = is_outside ? 0 : 1 / sum;
#pragma unroll
    for (int i = 2 * half; i < kHead / 2; i += 4) {
      sums[i] = is_outside ? 0 : sums[i] * inverse;
      sums[i + 1] = is_outside ? 0 : sums[i + 1] * inverse;
    }
    const int to = first + row + half * 8;
    if (lane % 4 == 0 && to < shape.rows)
      args.lse[to][head] = is_outside ? 0 : softmax.top[half] * static_cast<float>(shape.scale) + logf(sum);
  }
  store_accumulators<kQueries, kHead>(q_tile, sums, args.out, head, shape.head_size, first, shape.rows);
}

template <int kHead>
void launch(const AttentionShape& shape, const ForwardArgs<Bf16>& args, cudaStream_t stream) {
  cudaFuncSetAttribute(forward<kHead>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<kHead>);
  const int tiles = (shape.rows + kQueries - 1) / kQueries;
  forward<kHead><<<static_cast<unsigned>(tiles * shape.num_heads), kThreads, kSharedBytes<kHead>, stream>>>(shape, args);
}

}  // namespace

bool serves_tensor_cores(const AttentionShape& shape, DType dtype) {
  return dtype == DType::kBF16 && shape.head_size <= 128 && shape.scale > 0;
}

void tensor_forward(const AttentionShape& shape, const ForwardArgs<Bf16>& args, cudaStream_t stream) {
  if (shape.head_size <= 64)
    launch<64>(shape, args, stream);
  else
    launch<128>(shape, args, stream);
}

}  // namespace glim::cuda
