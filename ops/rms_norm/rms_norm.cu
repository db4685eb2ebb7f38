// y = x r w', r = 1 / sqrt(mean(x^2) + eps), w' = offset + w, over each row or over groups of n columns; and its cotangents.
// A team of lanes takes a group: lanes of one warp where groups are short, else a block. Each tensor crosses the memory bus once: what is
// read a second time, after the sums, is still in the L1 cache.
// Accumulation rule: a lane sums every lanes-th pack in f32 (f64 in f64 runs), a team adds its lanes in f64 in a fixed order. ct_weight:
// a block takes kCudaRowsPerChunk rows, each team adds up its groups, the teams are added in order, and their sum goes to the workspace
// [chunks, n]; a second kernel adds the chunks in a fixed order in f64. No atomics: the same bits every time.
#include "ops/device/device.cuh"
#include "ops/rms_norm/rms_norm_attrs.h"

namespace glim::cuda {
namespace {

constexpr int kTeamThreads = 256, kBlockThreads = 512;
constexpr size_t kSharedBytes = size_t{48} << 10;

// How many lanes take a group of n elements, in packs of N.
struct Team {
  int lanes, threads;
  bool is_block;
  Team(int64_t n, int pack) : lanes(1), threads(kTeamThreads), is_block(n > 4 * kWarp * pack) {
    if (is_block) {
      lanes = threads = threads_for((n + pack - 1) / pack, kBlockThreads);
    } else {
      while (lanes < kWarp && lanes * pack < n) lanes *= 2;
    }
  }
  [[nodiscard]] int per_block() const { return threads / lanes; }
};

// Every lane gets it. All lanes of a warp (kBlock: of the block) call it.
template <bool kBlock>
__device__ double team_sum(double value, int lanes) {
  if constexpr (kBlock) {
    return block_sum(value);
  } else {
    for (int offset = lanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffU, value, offset);
    return value;
  }
}

template <class T>
__device__ Accumulate<T> reciprocal_rms(double squares, int64_t n, double eps) {
  return static_cast<Accumulate<T>>(1.0 / sqrt(squares / static_cast<double>(n) + eps));
}

// w' of a pack.
template <int N, class T>
__device__ void load_weight(const T* weight, int64_t i, Accumulate<T> offset, Accumulate<T> (&w)[N]) {
  if (weight == nullptr) {
#pragma unroll
    for (int j = 0; j < N; ++j) w[j] = 1;
    return;
  }
  const Pack<T, N> pack = load<N>(weight + i);
#pragma unroll
  for (int j = 0; j < N; ++j) w[j] = offset + widen(pack.at[j]);
}

// One team per group. out may lie on in: a lane writes where only it reads.
template <int N, bool kBlock, class T>
__global__ void __launch_bounds__(kBlockThreads) norm_groups(Rows<const T> in, const T* weight, Rows<T> out, int64_t items, int64_t groups,
                                                             int64_t n, double eps, Accumulate<T> offset, int lanes) {
  using A = Accumulate<T>;
  const int lane = static_cast<int>(threadIdx.x) % lanes, team = static_cast<int>(threadIdx.x) / lanes;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (static_cast<int>(blockDim.x) / lanes) + team;
  const int64_t row = item < items ? item / groups : 0, first = item < items ? item % groups * n : 0, end = item < items ? n : 0;
  const T* const x = in[row] + first;
  T* const y = out[row] + first;
  A squares = 0;
  for (int64_t i = static_cast<int64_t>(lane) * N; i < end; i += static_cast<int64_t>(lanes) * N) {
    const Pack<T, N> pack = load<N>(x + i);
#pragma unroll
    for (int j = 0; j < N; ++j) squares += widen(pack.at[j]) * widen(pack.at[j]);
  }
  const A r = reciprocal_rms<T>(team_sum<kBlock>(squares, lanes), n, eps);
  for (int64_t i = static_cast<int64_t>(lane) * N; i < end; i += static_cast<int64_t>(lanes) * N) {
    Pack<T, N> pack = load<N>(x + i);
    A w[N];
    load_weight<N>(weight, i, offset, w);
#pragma unroll
    for (int j = 0; j < N; ++j) pack.at[j] = narrow<T>(widen(pack.at[j]) * r * w[j]);
    store<N>(y + i, pack);
  }
}

// sums [n] += cotangent * normed at a pack, with accesses of 16 bytes at most.
template <int N, class A>
__device__ void add_pack(A* sums, const A (&products)[N]) {
  constexpr int kPart = N < static_cast<int>(16 / sizeof(A)) ? N : static_cast<int>(16 / sizeof(A));
#pragma unroll
  for (int first = 0; first < N; first += kPart) {
    Pack<A, kPart> part = load<kPart>(sums + first);
#pragma unroll
    for (int j = 0; j < kPart; ++j) part.at[j] += products[first + j];
    store<kPart>(sums + first, part);
  }
}

// Block c: the groups of rows_per_chunk rows, team by team. ct_in may lie on ct. `partials` [chunks, n] is null without a weight. The
// teams' sums lie in shared memory [teams, n], or, of one team, right in the partials.
template <int N, bool kBlock, class T>
__global__ void __launch_bounds__(kBlockThreads)
    norm_vjp_chunks(Rows<const T> in, const T* weight, Rows<const T> ct, Rows<T> ct_in, Accumulate<T>* partials, int64_t rows,
                    int64_t groups, int64_t n, double eps, Accumulate<T> offset, int lanes, int64_t rows_per_chunk, bool in_shared) {
  using A = Accumulate<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int lane = static_cast<int>(threadIdx.x) % lanes, team = static_cast<int>(threadIdx.x) / lanes,
            teams = static_cast<int>(blockDim.x) / lanes;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * rows_per_chunk;
  const int64_t items = (begin + rows_per_chunk < rows ? rows_per_chunk : rows - begin) * groups;
  A* const mine = partials == nullptr ? nullptr : partials + static_cast<int64_t>(blockIdx.x) * n;
  A* const team_sums = reinterpret_cast<A*>(shared);
  A* const sums = partials == nullptr ? nullptr : in_shared ? team_sums + team * n : mine;
  const int64_t step = static_cast<int64_t>(lanes) * N, start = static_cast<int64_t>(lane) * N;
  for (int64_t i = start; sums != nullptr && i < n; i += step) {
    for (int j = 0; j < N; ++j) sums[i + j] = 0;
  }
  for (int64_t base = 0; base < items; base += teams) {  // as often in every team, which shuffles need
    const int64_t item = base + team;
    const bool is_live = item < items;
    const int64_t row = begin + (is_live ? item / groups : 0), first = is_live ? item % groups * n : 0, end = is_live ? n : 0;
    const T *const x = in[row] + first, *const c = ct[row] + first;
    T* const out = ct_in[row] + first;
    A squares = 0, dot = 0;
    for (int64_t i = start; i < end; i += step) {
      const Pack<T, N> xs = load<N>(x + i), cs = load<N>(c + i);
      A w[N];
      load_weight<N>(weight, i, offset, w);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        squares += widen(xs.at[j]) * widen(xs.at[j]);
        dot += widen(cs.at[j]) * w[j] * widen(xs.at[j]);
      }
    }
    const A r = reciprocal_rms<T>(team_sum<kBlock>(squares, lanes), n, eps);
    const A mean = static_cast<A>(team_sum<kBlock>(dot, lanes) * static_cast<double>(r) / static_cast<double>(n));  // of ct w' x r
    for (int64_t i = start; i < end; i += step) {
      const Pack<T, N> xs = load<N>(x + i), cs = load<N>(c + i);
      A w[N], products[N];
      load_weight<N>(weight, i, offset, w);
      Pack<T, N> to;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const A normed = widen(xs.at[j]) * r, cotangent = widen(cs.at[j]);
        products[j] = cotangent * normed;
        to.at[j] = narrow<T>(r * (cotangent * w[j] - normed * mean));
      }
      if (sums != nullptr) add_pack<N>(sums + i, products);
      store<N>(out + i, to);
    }
  }
  if (mine == nullptr || !in_shared) return;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    A sum = 0;
    for (int each = 0; each < teams; ++each) sum += team_sums[each * n + i];
    mine[i] = sum;
  }
}

constexpr int kLanes = 8;

// Block of 32 columns x 8 lanes: lane l adds chunks l, l + 8, ...; then the lanes are added in order.
template <class T>
__global__ void add_chunks(const Accumulate<T>* partials, int64_t chunks, int64_t n, T* out) {
  __shared__ double lanes[kLanes][kWarp];
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  double sum = 0;
  if (i < n) {
    for (int64_t chunk = threadIdx.y; chunk < chunks; chunk += kLanes) sum += static_cast<double>(partials[chunk * n + i]);
  }
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || i >= n) return;
  for (int lane = 1; lane < kLanes; ++lane) sum += lanes[lane][threadIdx.x];
  out[i] = narrow<T>(static_cast<Accumulate<T>>(sum));
}

// Calls f(pack, is_block) with integral constants.
template <int N, class F>
void with_team(bool takes_packs, int64_t n, F&& f) {
  const auto sized = [&](auto pack) {
    const Team team(n, decltype(pack)::value);
    if (team.is_block)
      f(pack, std::true_type{}, team);
    else
      f(pack, std::false_type{}, team);
  };
  if (takes_packs && n % N == 0)
    sized(std::integral_constant<int, N>{});
  else
    sized(std::integral_constant<int, 1>{});
}

template <class T>
bool weight_takes_packs(const T* weight, int n) {
  return reinterpret_cast<uintptr_t>(weight) % (static_cast<size_t>(n) * sizeof(T)) == 0;
}

}  // namespace

void rms_norm(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto attrs = k.attrs<ops::RmsNormAttrs>();
    const int64_t rows = k.out[0].type.shape[0], width = k.out[0].type.shape[1], n = attrs.group > 0 ? attrs.group : width;
    if (rows == 0 || width == 0) return;
    const Rows<const T> in = rows_of<const T>(k.in[0]);
    const Rows<T> out = rows_of<T>(k.out[0]);
    const T* const weight = k.in[1].as<T>();
    constexpr int N = kPackOf<T>;
    with_team<N>(takes_packs(in, rows, N) && takes_packs(out, rows, N) && weight_takes_packs(weight, N), n,
                 [&](auto pack, auto is_block, const Team& team) {
                   const int64_t items = rows * (width / n);
                   const auto blocks = static_cast<unsigned>((items + team.per_block() - 1) / team.per_block());
                   norm_groups<decltype(pack)::value, decltype(is_block)::value, T><<<blocks, team.threads, 0, stream(k)>>>(
                       in, weight, out, items, width / n, n, attrs.eps, static_cast<Accumulate<T>>(attrs.weight_offset), team.lanes);
                 });
  });
}

void rms_norm_vjp(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = Accumulate<T>;
    const auto attrs = k.attrs<ops::RmsNormAttrs>();
    const int64_t rows = k.out[0].type.shape[0], width = k.out[0].type.shape[1], n = attrs.group > 0 ? attrs.group : width;
    const Rows<const T> in = rows_of<const T>(k.in[0]), ct = rows_of<const T>(k.in[2]);
    const Rows<T> ct_in = rows_of<T>(k.out[0]);
    const T* const weight = k.in[1].as<T>();
    A* const partials = weight == nullptr ? nullptr : reinterpret_cast<A*>(k.workspace.data());
    const int64_t chunks = width == 0 ? 0 : (rows + ops::kCudaRowsPerChunk - 1) / ops::kCudaRowsPerChunk;
    constexpr int N = kPackOf<T>;
    const auto launch = [&](auto pack, auto is_block, const Team& team) {
      const size_t shared_bytes = weight == nullptr ? 0 : static_cast<size_t>(team.per_block() * n) * sizeof(A);
      const bool in_shared = shared_bytes <= kSharedBytes;
      GLIM_CHECK(in_shared || team.per_block() == 1, "only a block's sums may lie in the partials");
      const int64_t groups = width / n;
      // Without a weight nothing is summed over rows: a few groups per team are enough.
      const int64_t rows_per_chunk = weight != nullptr ? ops::kCudaRowsPerChunk : std::max<int64_t>(1, 4 * team.per_block() / groups);
      const auto blocks = static_cast<unsigned>((rows + rows_per_chunk - 1) / rows_per_chunk);
      norm_vjp_chunks<decltype(pack)::value, decltype(is_block)::value, T>
          <<<blocks, team.threads, in_shared ? shared_bytes : 0, stream(k)>>>(in, weight, ct, ct_in, partials, rows, groups, n, attrs.eps,
                                                                              static_cast<A>(attrs.weight_offset), team.lanes,
                                                                              rows_per_chunk, in_shared);
    };
    if (chunks > 0) {
      with_team<N>(takes_packs(in, rows, N) && takes_packs(ct, rows, N) && takes_packs(ct_in, rows, N) && weight_takes_packs(weight, N), n,
                   launch);
    }
    if (weight == nullptr || n == 0) return;
    const auto blocks = static_cast<unsigned>((n + kWarp - 1) / kWarp);
    add_chunks<T><<<blocks, dim3(kWarp, kLanes), 0, stream(k)>>>(partials, chunks, n, k.out[1].as<T>());
  });
}

}  // namespace glim::cuda
