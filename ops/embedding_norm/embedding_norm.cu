// out[t] = rms_norm(weight[ids[t]]), and the cotangent of the looked-up row: a block per row, which it reads twice, the second time from
// the L1 cache. Accumulation rule: a thread sums its packs in f32 (f64 in f64 runs), the block its threads in f64, in a fixed order.
// Rows whose id is no row of the weight are zeros, and an error at the end of the step.
#include "ops/device/math.cuh"
#include "ops/embedding_norm/embedding_norm_attrs.h"

namespace glim::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
struct LookedUp {
  const int32_t* ids;
  Rows<const T> table;
  int64_t table_rows;
  double eps;
  // Null where the id is no row.
  __device__ const T* at(int64_t row) const { return ids[row] >= 0 && ids[row] < table_rows ? table[ids[row]] : nullptr; }
};

// f(i, packs...) for the thread's packs of a row.
template <int N, class F>
__device__ void for_packs(int64_t n, F&& f) {
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < n; i += static_cast<int64_t>(blockDim.x) * N) f(i);
}

template <int N, class T>
__device__ void clear_row(T* out, int64_t n) {
  for_packs<N>(n, [&](int64_t i) { store<N>(out + i, Pack<T, N>{}); });
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads) norm_looked_up(LookedUp<T> from, Rows<T> out, int64_t n, uint64_t* fault) {
  using A = Accumulate<T>;
  const int64_t row = blockIdx.x;
  const T* const x = from.at(row);
  if (x == nullptr) {
    if (threadIdx.x == 0) report_value(fault, row, from.ids[row]);
    return clear_row<N>(out[row], n);
  }
  A squares = 0;
  for_packs<N>(n, [&](int64_t i) {
    const Pack<T, N> pack = load<N>(x + i);
#pragma unroll
    for (int j = 0; j < N; ++j) squares += widen(pack.at[j]) * widen(pack.at[j]);
  });
  const A r = 1 / sqrt_of(static_cast<A>(block_sum(static_cast<double>(squares)) / static_cast<double>(n) + from.eps));
  for_packs<N>(n, [&](int64_t i) {
    Pack<T, N> pack = load<N>(x + i);
#pragma unroll
    for (int j = 0; j < N; ++j) pack.at[j] = narrow<T>(widen(pack.at[j]) * r);
    store<N>(out[row] + i, pack);
  });
}

// ct_rows may lie on ct: a thread writes what only it has read.
template <int N, class T>
__global__ void __launch_bounds__(kThreads) norm_looked_up_vjp(LookedUp<T> from, Rows<const T> ct, Rows<T> ct_rows, int64_t n) {
  using A = Accumulate<T>;
  const int64_t row = blockIdx.x;
  const T* const x = from.at(row);
  if (x == nullptr) return clear_row<N>(ct_rows[row], n);
  A squares = 0, products = 0;
  for_packs<N>(n, [&](int64_t i) {
    const Pack<T, N> pack = load<N>(x + i), cotangent = load<N>(ct[row] + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      squares += widen(pack.at[j]) * widen(pack.at[j]);
      products += widen(pack.at[j]) * widen(cotangent.at[j]);
    }
  });
  const double over_n = 1 / static_cast<double>(n);
  const A r = 1 / sqrt_of(static_cast<A>(block_sum(static_cast<double>(squares)) * over_n + from.eps));
  const A mean = static_cast<A>(block_sum(static_cast<double>(products)) * static_cast<double>(r) * over_n);
  for_packs<N>(n, [&](int64_t i) {
    const Pack<T, N> pack = load<N>(x + i);
    Pack<T, N> cotangent = load<N>(ct[row] + i);
#pragma unroll
    for (int j = 0; j < N; ++j) cotangent.at[j] = narrow<T>(r * (widen(cotangent.at[j]) - widen(pack.at[j]) * r * mean));
    store<N>(ct_rows[row] + i, cotangent);
  });
}

// launch(Tag<T>, packs as an integral constant, looked-up rows, length of a row)
template <class F>
void with_rows(const KernelArgs& k, F&& launch) {
  if (k.out[0].type.shape.numel() == 0) return;
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    constexpr int N = kPackOf<T>;
    const int64_t rows = k.out[0].type.shape[0], n = k.out[0].type.shape[1];
    const LookedUp<T> from{k.in[0].as<int32_t>(), rows_of<const T>(k.in[1]), k.in[1].type.shape[0], k.attrs<ops::EmbeddingNormAttrs>().eps};
    bool packed = n % N == 0 && takes_packs(from.table, from.table_rows, N) && takes_packs(rows_of<T>(k.out[0]), rows, N);
    if (k.in.size() > 2) packed = packed && takes_packs(rows_of<T>(k.in[2]), rows, N);
    if (packed)
      launch(tag, std::integral_constant<int, N>{}, from, n);
    else
      launch(tag, std::integral_constant<int, 1>{}, from, n);
  });
}

}  // namespace

void embedding_norm(const KernelArgs& k) {
  uint64_t* const fault = k.context.data_fault("id", k.in[1].type.shape[0]);
  with_rows(k, [&](auto tag, auto packs, const auto& from, int64_t n) {
    using T = typename decltype(tag)::Type;
    norm_looked_up<packs(), T>
        <<<static_cast<unsigned>(k.out[0].type.shape[0]), kThreads, 0, stream(k)>>>(from, rows_of<T>(k.out[0]), n, fault);
  });
}

void embedding_norm_vjp(const KernelArgs& k) {
  with_rows(k, [&](auto tag, auto packs, const auto& from, int64_t n) {
    using T = typename decltype(tag)::Type;
    norm_looked_up_vjp<packs(), T><<<static_cast<unsigned>(k.out[0].type.shape[0]), kThreads, 0, stream(k)>>>(
        from, rows_of<const T>(k.in[2]), rows_of<T>(k.out[0]), n);
  });
}

}  // namespace glim::cuda
