// The forward pass on tensor cores: a block takes 128 queries of one head, a warpgroup 64 of them; a third one loads tiles of keys and
// values. The scores of tile j and the values of tile j - 1 are multiplied in one go, by the two warpgroups in turn: one
// multiplies while the other takes the softmax.
#include "ops/attention/wgmma.cuh"

namespace glim::cuda {
namespace {

constexpr int kQueries = 128, kKeys = 128, kStages = 3;

template <int kHead>
constexpr int kSharedBytes = kTileAlignment + kTileBytes<kQueries, kHead> + 2 * kStages* kTileBytes<kKeys, kHead>;

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

// Per row: the score that powers are taken relative to, and this thread's part of their sum. `top` is the maximum when it was last raised:
// powers may grow to 2^8, which costs no digits, before what was summed so far is worth being multiplied again.
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
      shrink[row] = 1;
      if ((next - top[row]) * factor > 8) {
        shrink[row] = power_of_two((top[row] - next) * factor);
        top[row] = next;
      }
      const float base = top[row] == -INFINITY ? 0 : top[row] * factor;  // a row that has seen nothing so far
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

// Warpgroup `which` (0 or 1) may multiply; of the other one, all threads call let_multiply(which) once per turn.
__device__ void wait_for_turn(int which) { asm volatile("bar.sync %0, 256;" ::"r"(3 + which) : "memory"); }
__device__ void let_multiply(int which) { asm volatile("bar.arrive %0, 256;" ::"r"(3 + which) : "memory"); }

template <int kHead>
struct ForwardTiles {
  uint32_t q, k, v;  // addresses in shared memory; kStages tiles of keys and of values
  [[nodiscard]] __device__ uint32_t keys(int j) const { return k + j % kStages * kTileBytes<kKeys, kHead>; }
  [[nodiscard]] __device__ uint32_t values(int j) const { return v + j % kStages * kTileBytes<kKeys, kHead>; }
};
struct ForwardState {
  TileSpans<kQueries> spans;
  Pipeline<kStages> keys, values;
  uint64_t queries_loaded;
};

template <int kHead>
__device__ void produce(const AttentionShape& shape, const ForwardArgs<Bf16>& args, const ForwardTiles<kHead>& tiles, ForwardState& state,
                        int head) {
  const int kv_head = head / shape.group(), begin = state.spans.any.begin, num_tiles = state.spans.num_tiles(kKeys);
  const HeadRows k = head_of(args.k, kv_head, shape.head_size), v = head_of(args.v, kv_head, shape.head_size);
#pragma unroll 1
  for (int j = 0; j < num_tiles; ++j) {
    state.keys.wait_until_empty(j);
    load_tile<kKeys, kHead>(tiles.keys(j), k, begin + j * kKeys, state.spans.any);
    state.keys.fill(j, k.by_chunks);
    state.values.wait_until_empty(j);
    load_tile<kKeys, kHead>(tiles.values(j), v, begin + j * kKeys, state.spans.any);
    state.values.fill(j, v.by_chunks);
  }
  wait_for_copies();  // before the thread ends
}

template <int kHead>
__device__ void consume(const AttentionShape& shape, const ForwardArgs<Bf16>& args, const ForwardTiles<kHead>& tiles, ForwardState& state,
                        int head, int first) {
  const TileSpans<kQueries>& spans = state.spans;
  const int num_tiles = spans.num_tiles(kKeys), begin = spans.any.begin, which = warpgroup();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, row = static_cast<int>(threadIdx.x) / kWarp * 16 + lane / 4;
  const RowSpan seen[2] = {spans.of[row], spans.of[row + 8]};
  const float factor = static_cast<float>(shape.scale * 1.4426950408889634);
  Softmax softmax;
  float s[kKeys / 2], sums[kHead / 2], shrink[2];
  uint32_t powers[kKeys / 4];
#pragma unroll
  for (float& each : sums) each = 0;
  const auto take_softmax = [&](int j) {
    const int key = begin + j * kKeys;
    if (spans.needs_mask(key, key + kKeys)) mask<kKeys>(s, seen, key);
    softmax.step(s, factor, shrink);
  };

  wait_for(&state.queries_loaded, 0);  // its tile is used for the output, too
  if (num_tiles > 0) {
    state.keys.wait_until_full(0);
    let_products_see();
    begin_products();
    scores<kQueries, kKeys, kHead>(s, tiles.q, tiles.keys(0));
    commit_products();
    if (which == 1 && num_tiles > 1) let_multiply(0);
    wait_for_products<0>();
    state.keys.release(0);
    keep_registers(s);
    take_softmax(0);
    pack_accumulators<kKeys>(s, powers);
#pragma unroll 1
    for (int j = 1; j < num_tiles; ++j) {
      state.keys.wait_until_full(j);
      state.values.wait_until_full(j - 1);
      let_products_see();
      wait_for_turn(which);
      keep_registers(s);
      keep_registers(sums);
      keep_registers(powers);
      begin_products();
      scores<kQueries, kKeys, kHead>(s, tiles.q, tiles.keys(j));
      commit_products();
      add_weighted<kKeys, kHead>(sums, powers, tiles.values(j - 1));
      commit_products();
      if (which == 0 || j + 1 < num_tiles) let_multiply(1 - which);
      wait_for_products<1>();
      state.keys.release(j);
      keep_registers(s);
      take_softmax(j);
      wait_for_products<0>();
      state.values.release(j - 1);
      keep_registers(sums);
      if (__any_sync(0xffffffffU, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
        for (int i = 0; i < kHead / 2; ++i) sums[i] *= shrink[i / 2 % 2];
      }
      pack_accumulators<kKeys>(s, powers);
    }
    state.values.wait_until_full(num_tiles - 1);
    let_products_see();
    keep_registers(sums);
    keep_registers(powers);
    begin_products();
    add_weighted<kKeys, kHead>(sums, powers, tiles.values(num_tiles - 1));
    commit_products();
    wait_for_products<0>();
    keep_registers(sums);
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
  store_accumulators<kQueries, kHead>(tiles.q, sums, args.out, head, shape.head_size, first, shape.rows);
}

template <int kHead>
__global__ void __launch_bounds__(kThreads, 1) forward(AttentionShape shape, ForwardArgs<Bf16> args) {
  extern __shared__ unsigned char memory[];
  __shared__ ForwardState state;
  ForwardTiles<kHead> tiles;
  tiles.q = (shared_address(memory) + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
  tiles.k = tiles.q + kTileBytes<kQueries, kHead>;
  tiles.v = tiles.k + kStages * kTileBytes<kKeys, kHead>;
  // The longest tiles first: with causal attention, the last queries.
  const int head = static_cast<int>(blockIdx.x) % shape.num_heads;
  const int first = static_cast<int>((gridDim.x - 1 - blockIdx.x) / shape.num_heads) * kQueries;
  if (threadIdx.x == 0) {
    state.keys.make();
    state.values.make();
    make_barrier(&state.queries_loaded, kWarpgroup);
  }
  __syncthreads();
  if (loads()) {
    const HeadRows q = head_of(args.q, head, shape.head_size);
    load_tile<kQueries, kHead>(tiles.q, q, first, {0, shape.rows});
    arrive_after_loads(&state.queries_loaded, q.by_chunks);
  }
  state.spans.fill<Side::kQueries>(shape, first);  // ends with a barrier
  if (loads()) {
    take_few_registers<40>();
    produce(shape, args, tiles, state, head);
  } else {
    take_many_registers<232>();
    consume(shape, args, tiles, state, head, first);
  }
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
