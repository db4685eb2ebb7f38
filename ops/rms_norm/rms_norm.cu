// y = x r w', r = 1 / sqrt(mean(x^2) + eps), w' = offset + w, over each row or over groups of n columns; and its cotangents.
// Whole rows: norm_rows.cuh. Groups (heads) and short rows: a team of lanes of one warp takes a group. Each tensor crosses the memory bus
// once: what is read a second time, after the sums, is still in the L1 cache.
// Accumulation rule of groups: a lane sums every lanes-th pack in f32 (f64 in f64 runs), a team adds its lanes in that type in a fixed
// order. ct_weight: each team of a block adds up its groups of the block's rows, the teams are added in order, and their sum goes to the
// workspace [chunks, n]; a second kernel adds the chunks in a fixed order in f64. No atomics: the same bits every time.
#include "ops/rms_norm/norm_rows.cuh"

namespace glim::cuda {
namespace {

constexpr int kTeamThreads = 256;
constexpr size_t kSharedBytes = size_t{48} << 10;

// How many lanes of a warp take a group of n elements, in packs of N, and how many threads a block has: one team where groups are long.
struct Team {
  int lanes = 1, threads = kTeamThreads;
  Team(int64_t n, int pack) {
    while (lanes < kWarp && lanes * pack < n) lanes *= 2;
    if (n > 4 * kWarp * pack) threads = kWarp;
  }
  [[nodiscard]] int per_block() const { return threads / lanes; }
};
// Whether whole rows get a block each.
bool takes_blocks(int64_t groups, int64_t n) { return groups == 1 && n > 512; }

// Every lane gets it. All lanes of a warp call it.
template <class A>
__device__ double team_sum(A value, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffU, value, offset);
  return static_cast<double>(value);
}

// One team per group. out may lie on in: a lane writes where only it reads.
template <int N, class T>
__global__ void __launch_bounds__(kTeamThreads) norm_groups(Rows<const T> in, const T* weight, Rows<T> out, int64_t items, int64_t groups,
                                                            int64_t n, double over_n, double eps, Accumulate<T> offset, int lanes) {
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
  const A r = reciprocal_rms<T>(team_sum(squares, lanes), over_n, eps);
  for (int64_t i = static_cast<int64_t>(lane) * N; i < end; i += static_cast<int64_t>(lanes) * N) {
    Pack<T, N> pack = load<N>(x + i);
    A w[N];
    load_weight<N>(weight, i, offset, w);
#pragma unroll
    for (int j = 0; j < N; ++j) pack.at[j] = narrow<T>(widen(pack.at[j]) * r * w[j]);
    store<N>(y + i, pack);
  }
}

// Block c: the groups of rows_per_chunk rows, team by team. ct_in may lie on ct or on `plus` (null: none). `partials` [chunks, n] is null
// without a weight. The teams' sums lie in shared memory [teams, n], or, of one team, right in the partials.
template <int N, class T>
__global__ void __launch_bounds__(kTeamThreads)
    norm_vjp_chunks(Rows<const T> in, const T* weight, Rows<const T> ct, Rows<const T> plus, Rows<T> ct_in, Accumulate<T>* partials,
                    int64_t rows, int64_t groups, int64_t n, double over_n, double eps, Accumulate<T> offset, int lanes,
                    int64_t rows_per_chunk, bool in_shared) {
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
    const A r = reciprocal_rms<T>(team_sum(squares, lanes), over_n, eps);
    const A mean = static_cast<A>(team_sum(dot, lanes) * static_cast<double>(r) * over_n);  // of ct w' x r
    for (int64_t i = start; i < end; i += step) {
      const Pack<T, N> xs = load<N>(x + i), cs = load<N>(c + i);
      A w[N], products[N];
      load_weight<N>(weight, i, offset, w);
      Pack<T, N> to, more;
      if (plus.data != nullptr) more = load<N>(plus[row] + first + i);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const A normed = widen(xs.at[j]) * r, cotangent = widen(cs.at[j]);
        products[j] = cotangent * normed;
        const A through = r * (cotangent * w[j] - normed * mean);
        to.at[j] = narrow<T>(plus.data != nullptr ? widen(more.at[j]) + through : through);
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

// Calls f(pack, team): pack is an integral constant.
template <int N, class F>
void with_team(bool takes_packs, int64_t n, F&& f) {
  if (takes_packs && n % N == 0)
    f(std::integral_constant<int, N>{}, Team(n, N));
  else
    f(std::integral_constant<int, 1>{}, Team(n, 1));
}

}  // namespace

void rms_norm(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto attrs = k.attrs<ops::RmsNormAttrs>();
    const int64_t rows = k.out[0].type.shape[0], width = k.out[0].type.shape[1], n = attrs.group > 0 ? attrs.group : width;
    const double over_n = 1.0 / static_cast<double>(std::max<int64_t>(1, n));
    if (rows == 0 || width == 0) return;
    const Rows<const T> in = rows_of<const T>(k.in[0]);
    const Rows<T> out = rows_of<T>(k.out[0]);
    const T* const weight = k.in[1].as<T>();
    const auto offset = static_cast<Accumulate<T>>(attrs.weight_offset);
    if (takes_blocks(width / n, n)) return launch_norm_rows<T>(stream(k), {{}, in, {weight, attrs.eps, offset}, {}, out, {}}, rows, n);
    constexpr int N = kPackOf<T>;
    with_team<N>(
        takes_packs(in, rows, N) && takes_packs(out, rows, N) && weight_takes_packs(weight, N), n, [&](auto pack, const Team& team) {
          const int64_t items = rows * (width / n);
          const auto blocks = static_cast<unsigned>((items + team.per_block() - 1) / team.per_block());
          norm_groups<decltype(pack)::value, T>
              <<<blocks, team.threads, 0, stream(k)>>>(in, weight, out, items, width / n, n, over_n, attrs.eps, offset, team.lanes);
        });
  });
}

void rms_norm_vjp(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = Accumulate<T>;
    const auto attrs = k.attrs<ops::RmsNormAttrs>();
    const int64_t rows = k.out[0].type.shape[0], width = k.out[0].type.shape[1], n = attrs.group > 0 ? attrs.group : width;
    const double over_n = 1.0 / static_cast<double>(std::max<int64_t>(1, n));
    const Rows<const T> in = rows_of<const T>(k.in[0]), ct = rows_of<const T>(k.in[2]);
    const Rows<const T> plus = k.in[3].present() ? rows_of<const T>(k.in[3]) : Rows<const T>{};
    const Rows<T> ct_in = rows_of<T>(k.out[0]);
    const T* const weight = k.in[1].as<T>();
    const A offset = static_cast<A>(attrs.weight_offset);
    A* const partials = weight == nullptr ? nullptr : reinterpret_cast<A*>(k.workspace.data());
    T* const ct_weight = weight == nullptr ? nullptr : k.out[1].as<T>();
    if (n == 0) return;
    const int64_t groups = width / n;
    if (takes_blocks(groups, n)) {
      const NormCotangents<T> operands{.s = in,
                                       .ct_a = ct,
                                       .plus = plus,
                                       .y = {},
                                       .next = {weight, attrs.eps, offset},
                                       .norm = {},
                                       .ct_s = ct_in,
                                       .ct_y = {},
                                       .next_partials = partials,
                                       .partials = nullptr};
      return launch_norm_rows_vjp<T>(stream(k), operands, rows, n, ct_weight, nullptr);
    }
    // Without a weight nothing is summed over rows: a few groups per team are enough.
    const auto cut = [&](const Team& team) {
      const int64_t most = ops::num_cuda_chunks(rows, n);
      return weight == nullptr ? std::max<int64_t>(1, 4 * team.per_block() / std::max<int64_t>(1, groups)) : (rows + most - 1) / most;
    };
    int64_t chunks = 0;
    const auto launch = [&](auto pack, const Team& team) {
      const size_t shared_bytes = weight == nullptr ? 0 : static_cast<size_t>(team.per_block() * n) * sizeof(A);
      const bool in_shared = shared_bytes <= kSharedBytes;
      GLIM_CHECK(in_shared || team.per_block() == 1, "only one team's sums may lie in the partials");
      const int64_t rows_per_chunk = cut(team);
      chunks = (rows + rows_per_chunk - 1) / rows_per_chunk;
      norm_vjp_chunks<decltype(pack)::value, T><<<static_cast<unsigned>(chunks), team.threads, in_shared ? shared_bytes : 0, stream(k)>>>(
          in, weight, ct, plus, ct_in, partials, rows, groups, n, over_n, attrs.eps, offset, team.lanes, rows_per_chunk, in_shared);
    };
    constexpr int N = kPackOf<T>;
    const auto packed = [&](const auto& each) { return takes_packs(each, rows, N); };
    if (rows > 0 && width > 0)
      with_team<N>(packed(in) && packed(ct) && packed(plus) && packed(ct_in) && weight_takes_packs(weight, N), n, launch);
    if (weight != nullptr) launch_add_chunks(stream(k), partials, chunks, n, ct_weight);
  });
}

}  // namespace glim::cuda
