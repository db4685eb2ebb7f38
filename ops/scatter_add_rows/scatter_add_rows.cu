// out[n] = accumulator[n] + the sum of in[r] over the r with indices[r] == n: the backward pass of embedding.
// The rows of each n form a chain in the workspace: head[r] is n where r is the lowest of its n, else -1; next[r] is the next r of the same
// n, -1 at the end. A warp per r finds both by comparing its index with all others: R^2 integer comparisons, which are little beside
// writing [num_rows, D]. Without an accumulator out is zeroed first; only rows that have an index are touched after that.
// Accumulation rule: one thread sums an output element along its chain, in order of r, in f64, and adds the accumulator last. No atomics:
// the same bits every time.
#include "ops/scatter_add_rows/scatter_add_rows_attrs.h"

#include "ops/device/copy_view.h"
#include "ops/device/device.cuh"

namespace glim::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    link_rows(const int32_t* indices, int32_t num_in, int64_t num_rows, int64_t skip, int32_t* head, int32_t* next, uint64_t* fault) {
  const int32_t r = static_cast<int32_t>((blockIdx.x * kThreads + threadIdx.x) / kWarp), lane = static_cast<int32_t>(threadIdx.x) % kWarp;
  if (r >= num_in) return;  // all of a warp
  const int32_t mine = indices[r];
  const bool in_range = mine >= 0 && mine < num_rows, is_used = in_range && mine != skip;
  if (lane == 0 && !in_range && mine != skip) report_value(fault, r, mine);
  bool is_first = true;
  int32_t following = num_in;
#pragma unroll 8
  for (int32_t at = lane; at < num_in; at += kWarp) {
    if (indices[at] != mine) continue;
    if (at < r) is_first = false;
    if (at > r && at < following) following = at;
  }
  is_first = __all_sync(0xffffffffU, is_first);
  following = static_cast<int32_t>(__reduce_min_sync(0xffffffffU, static_cast<unsigned>(following)));
  if (lane != 0) return;
  head[r] = is_used && is_first ? mine : -1;
  next[r] = following < num_in ? following : -1;
}

// Threads are x along columns (a pack each) and y along input rows; those that are no head have nothing to do.
template <int N, class T, class Out>
__global__ void add_chains(Rows<const T> in, const int32_t* head, const int32_t* next, bool accumulates, Rows<Out> out, int64_t num_in,
                           int64_t width) {
  for (int64_t start = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; start < num_in;
       start += static_cast<int64_t>(gridDim.y) * blockDim.y) {
    const int32_t row = head[start];
    if (row < 0) continue;
    for (int64_t column = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N; column < width;
         column += static_cast<int64_t>(gridDim.x) * blockDim.x * N) {
      double sum[N] = {};
      for (auto r = static_cast<int32_t>(start); r >= 0; r = next[r]) {
        const Pack<T, N> from = load<N>(in[r] + column);
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] += static_cast<double>(widen(from.at[i]));
      }
      Pack<Out, N> to;
      if (accumulates) to = load<N>(out[row] + column);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const double total = accumulates ? sum[i] + static_cast<double>(widen(to.at[i])) : sum[i];
        to.at[i] = narrow<Out>(static_cast<Accumulate<Out>>(total));
      }
      store<N>(out[row] + column, to);
    }
  }
}

template <class T, class Out>
void launch(const KernelArgs& k, const int32_t* head, const int32_t* next) {
  const int64_t num_in = k.in[0].type.shape[0], width = k.out[0].type.shape[1];
  const Rows<const T> in = rows_of<const T>(k.in[0]);
  const Rows<Out> out = rows_of<Out>(k.out[0]);
  const auto sized = [&](auto pack) {
    constexpr int N = decltype(pack)::value;
    const RowGrid grid(num_in, width / N);
    add_chains<N, T, Out><<<grid.blocks, grid.threads, 0, stream(k)>>>(in, head, next, k.in[2].present(), out, num_in, width);
  };
  constexpr int N = kPackOf<T, Out>;
  if (width % N == 0 && takes_packs(in, num_in, N) && takes_packs(out, k.out[0].type.shape[0], N))
    sized(std::integral_constant<int, N>{});
  else
    sized(std::integral_constant<int, 1>{});
}

}  // namespace

void scatter_add_rows(const KernelArgs& k) {
  const auto attrs = k.attrs<ops::ScatterAddRowsAttrs>();
  const auto num_in = static_cast<int32_t>(k.in[0].type.shape[0]);
  const int64_t num_rows = attrs.num_rows, width = k.out[0].type.shape[1];
  auto* const head = reinterpret_cast<int32_t*>(k.workspace.data());  // [R], then next [R]
  int32_t* const next = head + num_in;
  uint64_t* const fault = k.context.data_fault("index", num_rows);
  if (num_in > 0) {
    const auto blocks = static_cast<unsigned>((static_cast<int64_t>(num_in) * kWarp + kThreads - 1) / kThreads);
    link_rows<<<blocks, kThreads, 0, stream(k)>>>(k.in[1].as<int32_t>(), num_in, num_rows, attrs.skip_index, head, next, fault);
  }
  if (num_rows == 0 || width == 0) return;
  if (k.in[2].present())
    copy_view(k.in[2], k.out[0], k.context.stream());  // nothing where the plan made them one
  else
    clear_view(k.out[0], k.context.stream());
  if (num_in == 0) return;
  dispatch_float(k.in[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (k.out[0].type.dtype == k.in[0].type.dtype)
      launch<T, T>(k, head, next);
    else
      launch<T, Accumulate<T>>(k, head, next);
  });
}

}  // namespace glim::cuda
