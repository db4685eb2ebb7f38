// The backward pass on tensor cores. A block keeps 128 rows of one side and goes over tiles of 64 rows of the other:
//   keys:     s^T = k q^T, p^T = exp(s^T - lse), ct_v += p^T ct, ds^T = p^T (v ct^T - delta), ct_k += ds^T q   for the queries' heads in turn
//   queries:  s = q k^T,   p = exp(s - lse),                     ds = p (ct v^T - delta),     ct_q += ds k
// In both, the kept rows are the accumulators' rows, so that p and ds go from registers into the next product.
#include "ops/attention/wgmma.cuh"

namespace glim::cuda {
namespace {

constexpr int kThreads = 2 * kWarpgroup, kKept = 128, kPassing = 64, kStages = 3;

template <int kHead>
constexpr int kStageBytes = 2 * kTileBytes<kPassing, kHead>;
template <int kHead>
constexpr int kSharedBytes = kTileAlignment + 2 * kTileBytes<kKept, kHead> + kStages * kStageBytes<kHead>;

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
__global__ void __launch_bounds__(kThreads, 1) backward(AttentionShape shape, BackwardArgs<Bf16> args, Partials partials) {
  constexpr bool kKeysKept = kSide == Side::kKeys;
  extern __shared__ unsigned char memory[];
  __shared__ TileSpans<kKept> spans;
  __shared__ alignas(16) RowStatistics<float> passing_statistics[kStages][kPassing];  // of queries
  const uint32_t kept = (shared_address(memory) + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
  const uint32_t kept_with_ct = kept + kTileBytes<kKept, kHead>, stages = kept_with_ct + kTileBytes<kKept, kHead>;
  const int num_blocks_across = kKeysKept ? shape.num_kv_heads * partials.splits : shape.num_heads;
  const int across = static_cast<int>(blockIdx.x) % num_blocks_across, tile = static_cast<int>(blockIdx.x) / num_blocks_across;
  // The longest tiles first: with causal attention, the first keys and the last queries.
  const int first = (kKeysKept ? tile : static_cast<int>(gridDim.x) / num_blocks_across - 1 - tile) * kKept;
  // Keys: query heads head, head + 1, ... of this split. Queries: one head.
  const int kv_head = kKeysKept ? across / partials.splits : across / shape.group();
  const int num_heads = kKeysKept ? shape.group() / partials.splits : 1;
  const int first_head = kKeysKept ? kv_head * shape.group() + across % partials.splits * num_heads : across;
  const int kept_head = kKeysKept ? kv_head : first_head;

  load_tile<kKept, kHead, kThreads>(kept, head_of(kKeysKept ? args.k : args.q, kept_head, shape.head_size), first, {0, shape.rows});
  load_tile<kKept, kHead, kThreads>(kept_with_ct, head_of(kKeysKept ? args.v : args.ct, kept_head, shape.head_size), first,
                                    {0, shape.rows});
  spans.fill<kSide>(shape, first);
  const int tiles = spans.num_tiles(kPassing), begin = spans.any.begin, steps = tiles * num_heads;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, row = static_cast<int>(threadIdx.x) / kWarp * 16 + lane / 4;
  const RowSpan met[2] = {spans.of[row], spans.of[row + 8]};
  const float factor = static_cast<float>(shape.scale * 1.4426950408889634);
  RowStatistics<float> kept_statistics[2] = {};
  if constexpr (!kKeysKept) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = first + row + half * 8;
      if (i < shape.rows) kept_statistics[half] = args.statistics[static_cast<int64_t>(first_head) * shape.rows + i];
    }
  }

  float sums[kHead / 2], value_sums[kKeysKept ? kHead / 2 : 1], s[kPassing / 2] = {}, dp[kPassing / 2] = {};
#pragma unroll
  for (float& each : sums) each = 0;
#pragma unroll
  for (float& each : value_sums) each = 0;

  const auto load_stage = [&](int step, int stage, int head, int from) {
    if (step < steps) {
      const uint32_t to = stages + stage * kStageBytes<kHead>;
      load_tile<kPassing, kHead, kThreads>(to, head_of(kKeysKept ? args.q : args.k, kKeysKept ? head : kv_head, shape.head_size), from,
                                           spans.any);
      load_tile<kPassing, kHead, kThreads>(to + kTileBytes<kPassing, kHead>,
                                           head_of(kKeysKept ? args.ct : args.v, kKeysKept ? head : kv_head, shape.head_size), from,
                                           spans.any);
      if (kKeysKept && threadIdx.x < kPassing) {
        const int i = from + static_cast<int>(threadIdx.x);
        const bool exists = i < spans.any.end;
        copy_8_bytes(shared_address(&passing_statistics[stage][threadIdx.x]),
                     args.statistics + (exists ? static_cast<int64_t>(head) * shape.rows + i : 0), exists);
      }
    }
    commit_copies();
  };

  load_stage(0, 0, first_head, begin);
  int head = first_head, from = begin, stage = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int this_from = from, this_stage = stage;
    from += kPassing;
    if (from >= spans.any.end) {
      from = begin;
      ++head;
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
    wait_for_copies();
    __syncthreads();
    load_stage(step + 1, stage, head, from);

    const uint32_t passing = stages + this_stage * kStageBytes<kHead>, passing_with_ct = passing + kTileBytes<kPassing, kHead>;
    uint32_t packed[kPassing / 4], packed_powers[kPassing / 4];
    keep_registers(s);
    keep_registers(dp);
    begin_products();
    scores<kKept, kPassing, kHead>(s, kept, passing);
    commit_products();
    scores<kKept, kPassing, kHead>(dp, kept_with_ct, passing_with_ct);
    commit_products();
    wait_for_products<1>();  // the scores, and the last step's sums
    keep_registers(s);

    const int column = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kPassing / 2; ++i) {
      const float lse = kKeysKept ? passing_statistics[this_stage][column + i / 4 * 8 + i % 2].lse : kept_statistics[i / 2 % 2].lse;
      s[i] = power_of_two(s[i] * factor - lse);
    }
    const bool needs_mask = spans.needs_mask(this_from, this_from + kPassing);
    if (needs_mask) {
#pragma unroll
      for (int i = 0; i < kPassing / 2; ++i) {
        const int j = this_from + column + i / 4 * 8 + i % 2;
        const RowSpan& span = met[i / 2 % 2];
        if (j < span.begin || j >= span.end) s[i] = 0;
      }
    }
    if constexpr (kKeysKept) {
      pack_accumulators<kPassing>(s, packed_powers);
      keep_registers(value_sums);
      keep_registers(packed_powers);
      begin_products();
      add_weighted<kPassing, kHead>(value_sums, packed_powers, passing_with_ct);
      commit_products();
      wait_for_products<1>();
    } else {
      wait_for_products<0>();
    }
    keep_registers(dp);
#pragma unroll
    for (int i = 0; i < kPassing / 2; ++i) {
      const float delta = kKeysKept ? passing_statistics[this_stage][column + i / 4 * 8 + i % 2].delta : kept_statistics[i / 2 % 2].delta;
      dp[i] = s[i] * (dp[i] - delta);
    }
    pack_accumulators<kPassing>(dp, packed);
    keep_registers(sums);
    keep_registers(packed);
    begin_products();
    add_weighted<kPassing, kHead>(sums, packed, passing);
    commit_products();  // done by the next step, which leaves this stage alone
    if constexpr (!kKeysKept) {  // in flight over the end of this loop, the compiler would serialise all products
      wait_for_products<0>();
      keep_registers(sums);
    }
  }
  wait_for_products<0>();
  wait_for_copies();
  __syncthreads();
  keep_registers(sums);
  if constexpr (kKeysKept) keep_registers(value_sums);

#pragma unroll
  for (int i = 0; i < kHead / 2; ++i) {
    const bool is_outside = met[i / 2 % 2].begin >= met[i / 2 % 2].end;
    sums[i] = is_outside ? 0 : sums[i] * static_cast<float>(shape.scale);
    if constexpr (kKeysKept) value_sums[i] = is_outside ? 0 : value_sums[i];
  }
  if constexpr (kKeysKept) {
    if (partials.splits > 1) {
      const int64_t slot = static_cast<int64_t>(across % partials.splits) * shape.num_kv_heads + kv_head;
      store_partial<kHead>(partials.ct_k, sums, slot, first, shape.rows);
      store_partial<kHead>(partials.ct_v, value_sums, slot, first, shape.rows);
    } else {
      store_accumulators<kKept, kHead>(kept, sums, args.ct_k, kv_head, shape.head_size, first, shape.rows);
      store_accumulators<kKept, kHead>(kept_with_ct, value_sums, args.ct_v, kv_head, shape.head_size, first, shape.rows);
    }
  } else {
    store_accumulators<kKept, kHead>(kept, sums, args.ct_q, first_head, shape.head_size, first, shape.rows);
  }
}

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
  constexpr int kBytes = kSharedBytes<kHead>;
  cudaFuncSetAttribute(backward<kHead, Side::kKeys>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  cudaFuncSetAttribute(backward<kHead, Side::kQueries>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const int tiles = (shape.rows + kKept - 1) / kKept;
  const auto key_blocks = static_cast<unsigned>(tiles * shape.num_kv_heads * partials.splits);
  backward<kHead, Side::kKeys><<<key_blocks, kThreads, kBytes, stream>>>(shape, args, partials);
  backward<kHead, Side::kQueries><<<static_cast<unsigned>(tiles * shape.num_heads), kThreads, kBytes, stream>>>(shape, args, partials);
  if (partials.splits == 1) return;
  const int64_t elements = static_cast<int64_t>(shape.num_kv_heads) * shape.rows * kHead;
  const dim3 blocks(static_cast<unsigned>((elements + kThreads - 1) / kThreads), 2);
  add_partials<kHead><<<blocks, kThreads, 0, stream>>>(shape, partials, args.ct_k, args.ct_v);
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
