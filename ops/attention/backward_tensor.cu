// The backward pass on tensor cores. A block keeps 128 rows of one side and goes over tiles of the other, which a third warpgroup loads:
//   keys     s^T = k q^T, p^T = exp(s^T - lse), ct_v += p^T ct, ds^T = p^T (v ct^T - delta), ct_k += ds^T q, for all heads of the queries
//   queries  s = q k^T, p = exp(s - lse), ds = p (ct v^T - delta), ct_q += ds k
// In both, the kept rows are the accumulators' rows, so that p and ds go from registers into the next product.
#include "ops/attention/wgmma.cuh"

namespace glim::cuda {
namespace {

constexpr int kKept = 128;

template <int kHead, Side kSide>
struct Tiles {
  // Passing rows are the columns of two accumulators, beside one of kHead columns, or two for keys.
  static constexpr int kPassing = kSide == Side::kKeys ? 64 : 128, kStages = kSide == Side::kKeys ? 3 : 2;
  static constexpr int kPassingBytes = kTileBytes<kPassing, kHead>, kKeptBytes = kTileBytes<kKept, kHead>;
  static constexpr int kBytes = 2 * kKeptBytes + kStages * 2 * kPassingBytes;
  uint32_t kept, kept_with_ct;  // addresses in shared memory: k and v, or q and ct
  __device__ explicit Tiles(uint32_t memory) : kept(memory), kept_with_ct(memory + kKeptBytes) {}
  [[nodiscard]] __device__ uint32_t passing(int step) const { return kept + 2 * kKeptBytes + step % kStages * 2 * kPassingBytes; }
  [[nodiscard]] __device__ uint32_t passing_with_ct(int step) const { return passing(step) + kPassingBytes; }
};
template <Side kSide>
struct State {
  static constexpr int kPassing = Tiles<64, kSide>::kPassing, kStages = Tiles<64, kSide>::kStages;
  alignas(16) RowStatistics<float> statistics[kSide == Side::kKeys ? kStages : 1][kPassing];  // of passing queries
  TileSpans<kKept> spans;
  Pipeline<kStages> stages;
  uint64_t kept_loaded;
};
template <int kHead>
constexpr int kSharedBytes = kTileAlignment + std::max(Tiles<kHead, Side::kKeys>::kBytes, Tiles<kHead, Side::kQueries>::kBytes);

// What a block does. Keys: query heads first_head, ... of a split. Queries: one head.
struct Part {
  int first, kv_head, first_head, num_heads, split;
};

struct Partials {
  float *ct_k, *ct_v;  // [splits, num_kv_heads, rows, kHead]; null with one split
  int splits;
};

template <int kHead>
__device__ void store_partial(float* partials, const float (&sums)[kHead / 2], int64_t slot, int first_row, int num_rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, row = first_row + static_cast<int>(threadIdx.x) / kWarp * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + half * 8 >= num_rows) continue;
    float* const to = partials + (slot * num_rows + row + half * 8) * kHead + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kHead / 8; ++n)
      *reinterpret_cast<float2*>(to + n * 8) = make_float2(sums[4 * n + 2 * half], sums[4 * n + 2 * half + 1]);
  }
}

template <int kHead, Side kSide>
__device__ void produce(const AttentionShape& shape, const BackwardArgs<Bf16>& args, const Tiles<kHead, kSide>& tiles, State<kSide>& state,
                        const Part& part) {
  constexpr bool kKeysKept = kSide == Side::kKeys;
  constexpr int kPassing = Tiles<kHead, kSide>::kPassing;
  const int d = shape.head_size;
  const RowSpan any = state.spans.any;
  int step = 0;
#pragma unroll 1
  for (int i = 0; i < part.num_heads; ++i) {
    const int head = kKeysKept ? part.first_head + i : part.kv_head;
    const HeadRows passing = head_of(kKeysKept ? args.q : args.k, head, d),
                   passing_with_ct = head_of(kKeysKept ? args.ct : args.v, head, d);
#pragma unroll 1
    for (int from = any.begin; from < any.end; from += kPassing) {
      state.stages.wait_until_empty(step);
      load_tile<kPassing, kHead>(tiles.passing(step), passing, from, any);
      load_tile<kPassing, kHead>(tiles.passing_with_ct(step), passing_with_ct, from, any);
      const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
      if (kKeysKept && thread < kPassing) {
        const bool exists = from + thread < any.end;
        copy_8_bytes(shared_address(&state.statistics[step % State<kSide>::kStages][thread]),
                     args.statistics + (exists ? static_cast<int64_t>(head) * shape.rows + from + thread : 0), exists);
      }
      state.stages.fill(step, passing.by_chunks && passing_with_ct.by_chunks);
      ++step;
    }
  }
  wait_for_copies();  // before the thread ends
}

template <int kHead, Side kSide>
__device__ void consume(const AttentionShape& shape, const BackwardArgs<Bf16>& args, const Partials& partials,
                        const Tiles<kHead, kSide>& tiles, State<kSide>& state, const Part& part) {
  constexpr bool kKeysKept = kSide == Side::kKeys;
  constexpr int kPassing = Tiles<kHead, kSide>::kPassing;
  const TileSpans<kKept>& spans = state.spans;
  const int begin = spans.any.begin, steps = spans.num_tiles(kPassing) * part.num_heads;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, row = static_cast<int>(threadIdx.x) / kWarp * 16 + lane / 4;
  const int column = lane % 4 * 2;
  const float factor = static_cast<float>(shape.scale * 1.4426950408889634);
  RowStatistics<float> kept_statistics[2] = {};
  if constexpr (!kKeysKept) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = part.first + row + half * 8;
      if (i < shape.rows) kept_statistics[half] = args.statistics[static_cast<int64_t>(part.first_head) * shape.rows + i];
    }
  }
  float sums[kHead / 2] = {}, value_sums[kKeysKept ? kHead / 2 : 1] = {}, s[kPassing / 2] = {}, dp[kPassing / 2] = {};

  wait_for(&state.kept_loaded, 0);
  int from = begin;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    state.stages.wait_until_full(step);
    let_products_see();
    keep_registers(s);
    keep_registers(dp);
    begin_products();
    scores<kKept, kPassing, kHead>(s, tiles.kept, tiles.passing(step));
    commit_products();
    scores<kKept, kPassing, kHead>(dp, tiles.kept_with_ct, tiles.passing_with_ct(step));
    commit_products();
    wait_for_products<1>();
    keep_registers(s);

    const RowStatistics<float>* const statistics = state.statistics[kKeysKept ? step % State<kSide>::kStages : 0] + column;
#pragma unroll
    for (int i = 0; i < kPassing / 2; ++i) {
      const float lse = kKeysKept ? statistics[i / 4 * 8 + i % 2].lse : kept_statistics[i / 2 % 2].lse;
      s[i] = power_of_two(s[i] * factor - lse);
    }
    if (spans.needs_mask(from, from + kPassing)) {
      const RowSpan met[2] = {spans.of[row], spans.of[row + 8]};
#pragma unroll
      for (int i = 0; i < kPassing / 2; ++i) {
        const int j = from + column + i / 4 * 8 + i % 2;
        const RowSpan span = met[i / 2 % 2];
        if (j < span.begin || j >= span.end) s[i] = 0;
      }
    }
    uint32_t packed[kPassing / 4], packed_powers[kKeysKept ? kPassing / 4 : 1];
    if constexpr (kKeysKept) {
      pack_accumulators<kPassing>(s, packed_powers);
      keep_registers(value_sums);
      keep_registers(packed_powers);
      begin_products();
      add_weighted<kPassing, kHead>(value_sums, packed_powers, tiles.passing_with_ct(step));
      commit_products();
      wait_for_products<1>();
    } else {
      wait_for_products<0>();
    }
    keep_registers(dp);
#pragma unroll
    for (int i = 0; i < kPassing / 2; ++i) {
      const float delta = kKeysKept ? statistics[i / 4 * 8 + i % 2].delta : kept_statistics[i / 2 % 2].delta;
      dp[i] = s[i] * (dp[i] - delta);
    }
    pack_accumulators<kPassing>(dp, packed);
    keep_registers(sums);
    keep_registers(packed);
    begin_products();
    add_weighted<kPassing, kHead>(sums, packed, tiles.passing(step));
    commit_products();
    wait_for_products<0>();  // in flight over the end of this loop, the compiler would serialise all products
    keep_registers(sums);
    if constexpr (kKeysKept) keep_registers(value_sums);
    state.stages.release(step);
    from = from + kPassing < spans.any.end ? from + kPassing : begin;
  }

  const RowSpan met[2] = {spans.of[row], spans.of[row + 8]};
#pragma unroll
  for (int i = 0; i < kHead / 2; ++i) {
    const bool is_outside = met[i / 2 % 2].begin >= met[i / 2 % 2].end;
    sums[i] = is_outside ? 0 : sums[i] * static_cast<float>(shape.scale);
    if constexpr (kKeysKept) value_sums[i] = is_outside ? 0 : value_sums[i];
  }
  if constexpr (kKeysKept) {
    if (partials.splits > 1) {
      const int64_t slot = static_cast<int64_t>(part.split) * shape.num_kv_heads + part.kv_head;
      store_partial<kHead>(partials.ct_k, sums, slot, part.first, shape.rows);
      store_partial<kHead>(partials.ct_v, value_sums, slot, part.first, shape.rows);
    } else {
      store_accumulators<kKept, kHead>(tiles.kept, sums, args.ct_k, part.kv_head, shape.head_size, part.first, shape.rows);
      store_accumulators<kKept, kHead>(tiles.kept_with_ct, value_sums, args.ct_v, part.kv_head, shape.head_size, part.first, shape.rows);
    }
  } else {
    store_accumulators<kKept, kHead>(tiles.kept, sums, args.ct_q, part.first_head, shape.head_size, part.first, shape.rows);
  }
}

template <int kHead, Side kSide>
__device__ void run(const AttentionShape& shape, const BackwardArgs<Bf16>& args, const Partials& partials, uint32_t memory,
                    State<kSide>& state, const Part& part) {
  const Tiles<kHead, kSide> tiles(memory);
  if (threadIdx.x == 0) {
    state.stages.make();
    make_barrier(&state.kept_loaded, kWarpgroup);
  }
  __syncthreads();
  if (loads()) {
    constexpr bool kKeysKept = kSide == Side::kKeys;
    const int head = kKeysKept ? part.kv_head : part.first_head;
    const HeadRows kept = head_of(kKeysKept ? args.k : args.q, head, shape.head_size),
                   kept_with_ct = head_of(kKeysKept ? args.v : args.ct, head, shape.head_size);
    load_tile<kKept, kHead>(tiles.kept, kept, part.first, {0, shape.rows});
    load_tile<kKept, kHead>(tiles.kept_with_ct, kept_with_ct, part.first, {0, shape.rows});
    arrive_after_loads(&state.kept_loaded, kept.by_chunks && kept_with_ct.by_chunks);
  }
  state.spans.template fill<kSide>(shape, part.first);  // ends with a barrier
  if (loads()) {
    take_few_registers<24>();
    produce(shape, args, tiles, state, part);
  } else {
    take_many_registers<240>();
    consume(shape, args, partials, tiles, state, part);
  }
}

// Blocks of keys, then blocks of queries; of either, the longest first: with causal attention, the first keys and the last queries.
template <int kHead>
__global__ void __launch_bounds__(kThreads, 1)
    backward(AttentionShape shape, BackwardArgs<Bf16> args, Partials partials, unsigned num_key_blocks) {
  extern __shared__ unsigned char shared[];
  const uint32_t memory = (shared_address(shared) + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
  if (blockIdx.x < num_key_blocks) {
    __shared__ State<Side::kKeys> state;
    const int across = shape.num_kv_heads * partials.splits, block = static_cast<int>(blockIdx.x);
    const int kv_head = block % across / partials.splits, split = block % across % partials.splits, heads = shape.group() / partials.splits;
    const Part part{block / across * kKept, kv_head, kv_head * shape.group() + split * heads, heads, split};
    run<kHead, Side::kKeys>(shape, args, partials, memory, state, part);
  } else {
    __shared__ State<Side::kQueries> state;
    const int from_last = static_cast<int>(gridDim.x - 1 - blockIdx.x),
              head = (static_cast<int>(blockIdx.x - num_key_blocks)) % shape.num_heads;
    const Part part{from_last / shape.num_heads * kKept, head / shape.group(), head, 1, 0};
    run<kHead, Side::kQueries>(shape, args, partials, memory, state, part);
  }
}

constexpr int kAddThreads = 256;

// out = the sum over splits, in order. blockIdx.y: ct_k or ct_v.
template <int kHead>
__global__ void add_partials(AttentionShape shape, Partials partials, Rows<Bf16> ct_k, Rows<Bf16> ct_v) {
  const float* const from = blockIdx.y == 0 ? partials.ct_k : partials.ct_v;
  const Rows<Bf16> to = blockIdx.y == 0 ? ct_k : ct_v;
  const int64_t per_split = static_cast<int64_t>(shape.num_kv_heads) * shape.rows * kHead;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t column = i % kHead, row = i / kHead % shape.rows, head = i / kHead / shape.rows;
  if (i >= per_split || column >= shape.head_size) return;
  float sum = 0;
  for (int split = 0; split < partials.splits; ++split) sum += from[split * per_split + i];
  to[row][head * shape.head_size + column] = __float2bfloat16(sum);
}

template <int kHead>
void launch(const AttentionShape& shape, const BackwardArgs<Bf16>& args, const Partials& partials, cudaStream_t stream) {
  cudaFuncSetAttribute(backward<kHead>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<kHead>);
  const int tiles = (shape.rows + kKept - 1) / kKept;
  const auto key_blocks = static_cast<unsigned>(tiles * shape.num_kv_heads * partials.splits);
  const auto query_blocks = static_cast<unsigned>(tiles * shape.num_heads);
  backward<kHead><<<key_blocks + query_blocks, kThreads, kSharedBytes<kHead>, stream>>>(shape, args, partials, key_blocks);
  if (partials.splits == 1) return;
  const int64_t elements = static_cast<int64_t>(shape.num_kv_heads) * shape.rows * kHead;
  const dim3 blocks(static_cast<unsigned>((elements + kAddThreads - 1) / kAddThreads), 2);
  add_partials<kHead><<<blocks, kAddThreads, 0, stream>>>(shape, partials, args.ct_k, args.ct_v);
}

}  // namespace

void tensor_backward(const AttentionShape& shape, const BackwardArgs<Bf16>& args, int splits, float* ct_k_partials, float* ct_v_partials,
                     cudaStream_t stream) {
  const Partials partials{ct_k_partials, ct_v_partials, splits};
  if (shape.head_size <= 64)
    launch<64>(shape, args, partials, stream);
  else
    launch<128>(shape, args, partials, stream);
}

}  // namespace glim::cuda
