#pragma once
// Norms of whole rows, a row per block, forward and backward; rms_norm and residual_norm are made of them. Each tensor crosses the memory
// bus once: blocks go through many rows, and copy the next two into shared memory while they work on one (kDepth). A thread copies what
// only it reads, so that copies need no barrier; rows that are too long for that, or not aligned for packs, are read where they lie, the
// second time from the L1 cache. Accumulation rule: a thread sums its packs in f32 (f64 in f64 runs), a warp adds its threads in that type,
// a block its warps in f64, in fixed orders. Cotangents of weights: a block sums its rows in f32 into its row of the workspace [chunks, n];
// a second kernel adds the chunks in f64 in a fixed order. No atomics: the same bits every time.
#include "ops/device/math.cuh"
#include "ops/rms_norm/rms_norm_attrs.h"

namespace glim::cuda {

// A norm's constants. w' = offset + weight, 1 without a weight.
template <class T>
struct NormOf {
  const T* weight;
  double eps;
  Accumulate<T> offset;
};

// 1 / sqrt(squares / n + eps), over_n = 1 / n. Root and quotient in the accumulation type: f64 ones would take longer than all else.
template <class T>
__device__ Accumulate<T> reciprocal_rms(double squares, double over_n, double eps) {
  return 1 / sqrt_of(static_cast<Accumulate<T>>(squares * over_n + eps));
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

// sums += products at a pack, with accesses of 16 bytes at most.
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

// K sums over the block at once; every thread gets them. All threads call it; blocks consist of whole warps.
template <int K, class A>
__device__ void block_sums(const A (&values)[K], double (&sums)[K]) {
  __shared__ double partial[K][kWarp], total[K];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp,
            warps = static_cast<int>(blockDim.x) / kWarp;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    A value = values[k];
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffU, value, offset);
    if (lane == 0) partial[k][warp] = static_cast<double>(value);
  }
  __syncthreads();
  for (int k = warp; k < K; k += warps) {
    double value = lane < warps ? partial[k][lane] : 0.0;
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffU, value, offset);
    if (lane == 0) total[k] = value;
  }
  __syncthreads();  // the next call writes `partial` only after all have passed here, and `total` only after its own first barrier
#pragma unroll
  for (int k = 0; k < K; ++k) sums[k] = total[k];
}

constexpr int kDepth = 3;  // rows of a block in shared memory
constexpr int kNormThreads = 512, kNormVjpThreads = 1024;

// Rows of kTensors tensors, each [rows, n], on their way through shared memory. The last one may be absent (null). `stage`
// [kDepth, tensors that are there, n] is null where rows are read in place.
template <int N, int kTensors, class T>
struct RowStream {
  Rows<const T> tensors[kTensors];
  T* stage;
  int64_t n;

  // The thread's part of a row, if it is one, begins to move. Every call is one group of copies.
  __device__ void fetch(int64_t row, bool exists, int slot) const {
    if (stage == nullptr) return;
    if constexpr (N * sizeof(T) == 16) {
#pragma unroll
      for (int k = 0; k < kTensors; ++k) {
        if (!exists || tensors[k].data == nullptr) continue;
        const T* const from = tensors[k][row];
        T* const to = at_slot(k, slot);
        for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < n; i += static_cast<int64_t>(blockDim.x) * N)
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to + i))),
                       "l"(from + i)
                       : "memory");
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    }
  }
  // After it the oldest row is there.
  __device__ void wait() const {
    if (stage != nullptr) asm volatile("cp.async.wait_group %0;" ::"n"(kDepth - 1) : "memory");
  }
  [[nodiscard]] __device__ int count() const { return tensors[kTensors - 1].data != nullptr ? kTensors : kTensors - 1; }
  __device__ T* at_slot(int k, int slot) const { return stage + (static_cast<int64_t>(slot) * count() + k) * n; }
  // Null for an absent tensor.
  __device__ const T* at(int k, int64_t row, int slot) const {
    if (tensors[k].data == nullptr) return nullptr;
    return stage != nullptr ? at_slot(k, slot) : tensors[k][row];
  }
};

// out = x + norm(y), or norm(y) where there is no x; kNext: normed = next(out).  Rows blockIdx.x, blockIdx.x + gridDim.x, ...
// out may lie on x (or on y, where there is no x), normed on y: a thread writes where only it reads.
template <int N, bool kNext, class T>
__global__ void __launch_bounds__(kNormThreads, 2) norm_rows(Rows<const T> x, Rows<const T> y, NormOf<T> norm, NormOf<T> next, Rows<T> out,
                                                             Rows<T> normed, int64_t rows, int64_t n, double over_n, bool is_staged) {
  using A = Accumulate<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  const RowStream<N, 2, T> stream{{y, x}, is_staged ? reinterpret_cast<T*>(shared) : nullptr, n};
  const int64_t step = static_cast<int64_t>(blockDim.x) * N, start = static_cast<int64_t>(threadIdx.x) * N, stride = gridDim.x;
  for (int ahead = 0; ahead < kDepth - 1; ++ahead) stream.fetch(blockIdx.x + ahead * stride, blockIdx.x + ahead * stride < rows, ahead);
  int slot = 0, free_slot = kDepth - 1;
  for (int64_t row = blockIdx.x; row < rows; row += stride) {
    stream.fetch(row + (kDepth - 1) * stride, row + (kDepth - 1) * stride < rows, free_slot);
    stream.wait();
    const T *const ys = stream.at(0, row, slot), *const xs = stream.at(1, row, slot);
    T* const to = out[row];
    A squares[1] = {0};
    double sum[1];
    for (int64_t i = start; i < n; i += step) {
      const Pack<T, N> pack = load<N>(ys + i);
#pragma unroll
      for (int j = 0; j < N; ++j) squares[0] += widen(pack.at[j]) * widen(pack.at[j]);
    }
    block_sums(squares, sum);
    const A r = reciprocal_rms<T>(sum[0], over_n, norm.eps);
    squares[0] = 0;
    T* const kept = is_staged ? stream.at_slot(0, slot) : to;  // the thread's part of out, for the second norm
    for (int64_t i = start; i < n; i += step) {
      const Pack<T, N> from = load<N>(ys + i);
      A w[N];
      load_weight<N>(norm.weight, i, norm.offset, w);
      Pack<T, N> residual, result;
      if (xs != nullptr) residual = load<N>(xs + i);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const A value = widen(from.at[j]) * r * w[j];
        result.at[j] = narrow<T>(xs != nullptr ? widen(residual.at[j]) + value : value);
        if constexpr (kNext) squares[0] += widen(result.at[j]) * widen(result.at[j]);
      }
      store<N>(to + i, result);
      if (kNext && is_staged) store<N>(kept + i, result);
    }
    if constexpr (kNext) {
      block_sums(squares, sum);
      const A next_r = reciprocal_rms<T>(sum[0], over_n, next.eps);
      for (int64_t i = start; i < n; i += step) {
        Pack<T, N> pack = load<N>(kept + i);
        A w[N];
        load_weight<N>(next.weight, i, next.offset, w);
#pragma unroll
        for (int j = 0; j < N; ++j) pack.at[j] = narrow<T>(widen(pack.at[j]) * next_r * w[j]);
        store<N>(normed[row] + i, pack);
      }
    }
    slot = slot + 1 == kDepth ? 0 : slot + 1;
    free_slot = free_slot + 1 == kDepth ? 0 : free_slot + 1;
  }
}

// Operands and results of a backward pass: a = next(s), and (kBranch) s = x + norm(y).
//   ct_s = plus + next^T ct_a        plus: the cotangent that s has from elsewhere, or absent
//   ct_y = norm^T ct_s               ct_s is not rounded on its way
template <class T>
struct NormCotangents {
  Rows<const T> s, ct_a, plus, y;
  NormOf<T> next, norm;
  Rows<T> ct_s, ct_y;
  Accumulate<T>*next_partials, *partials;  // [chunks, n] each; null without a weight
};

// Block c: rows_per_chunk rows. ct_s may lie on plus or ct_a, ct_y on ct_a. The weights' sums lie in shared memory, or right in the
// partials.
template <int N, bool kBranch, class T>
__global__ void __launch_bounds__(kNormVjpThreads) norm_rows_vjp(NormCotangents<T> k, int64_t rows, int64_t rows_per_chunk, int64_t n,
                                                                 double over_n, bool is_staged, bool sums_are_shared) {
  using A = Accumulate<T>;
  constexpr int kTensors = kBranch ? 4 : 3;
  extern __shared__ __align__(16) unsigned char shared[];
  RowStream<N, kTensors, T> stream;
  stream.tensors[0] = k.s;
  stream.tensors[1] = k.ct_a;
  if constexpr (kBranch) stream.tensors[2] = k.y;
  stream.tensors[kTensors - 1] = k.plus;
  stream.stage = is_staged ? reinterpret_cast<T*>(shared) : nullptr;
  stream.n = n;
  A* const shared_sums = reinterpret_cast<A*>(shared + (is_staged ? sizeof(T) * kDepth * static_cast<size_t>(stream.count() * n) : 0));
  const int64_t mine = static_cast<int64_t>(blockIdx.x) * n;
  A* const next_sums = k.next_partials == nullptr ? nullptr : sums_are_shared ? shared_sums : k.next_partials + mine;
  A* const branch_sums = k.partials == nullptr ? nullptr : sums_are_shared ? shared_sums + n : k.partials + mine;
  const int64_t step = static_cast<int64_t>(blockDim.x) * N, start = static_cast<int64_t>(threadIdx.x) * N;
  for (int64_t i = start; i < n; i += step) {
    for (int j = 0; j < N; ++j) {
      if (next_sums != nullptr) next_sums[i + j] = 0;
      if (branch_sums != nullptr) branch_sums[i + j] = 0;
    }
  }
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * rows_per_chunk,
                end = begin + rows_per_chunk < rows ? begin + rows_per_chunk : rows;
  for (int ahead = 0; ahead < kDepth - 1; ++ahead) stream.fetch(begin + ahead, begin + ahead < end, ahead);
  int slot = 0, free_slot = kDepth - 1;
  for (int64_t row = begin; row < end; ++row) {
    stream.fetch(row + kDepth - 1, row + kDepth - 1 < end, free_slot);
    stream.wait();
    const T *const s = stream.at(0, row, slot), *const ct_a = stream.at(1, row, slot),
                   *const y = kBranch ? stream.at(2, row, slot) : nullptr, *const plus = stream.at(kTensors - 1, row, slot);
    // All that both norms need in one go: ct_s is linear in what is not known before the sums.
    constexpr int kSums = kBranch ? 6 : 2;
    A parts[kSums] = {};
    double sums[kSums];
    for (int64_t i = start; i < n; i += step) {
      const Pack<T, N> of_s = load<N>(s + i), of_a = load<N>(ct_a + i);
      A next_w[N];
      load_weight<N>(k.next.weight, i, k.next.offset, next_w);
      Pack<T, N> of_plus, of_y;
      A w[N];
      if constexpr (kBranch) {
        if (plus != nullptr) of_plus = load<N>(plus + i);
        of_y = load<N>(y + i);
        load_weight<N>(k.norm.weight, i, k.norm.offset, w);
      }
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const A value = widen(of_s.at[j]), g = widen(of_a.at[j]) * next_w[j];
        parts[0] += value * value;
        parts[1] += g * value;
        if constexpr (kBranch) {
          const A of_branch = widen(of_y.at[j]), weighted = of_branch * w[j];
          parts[2] += of_branch * of_branch;
          parts[3] += weighted * value;
          parts[4] += weighted * g;
          if (plus != nullptr) parts[5] += weighted * widen(of_plus.at[j]);
        }
      }
    }
    block_sums(parts, sums);
    const A next_r = reciprocal_rms<T>(sums[0], over_n, k.next.eps);
    const A next_mean = static_cast<A>(sums[1] * static_cast<double>(next_r) * over_n);  // of ct_a w' s r
    A r = 0, mean = 0;
    if constexpr (kBranch) {
      r = reciprocal_rms<T>(sums[2], over_n, k.norm.eps);
      const double next = static_cast<double>(next_r);
      const double dot = sums[5] + next * (sums[4] - next * static_cast<double>(next_mean) * sums[3]);  // of ct_s, w' and y
      mean = static_cast<A>(dot * static_cast<double>(r) * over_n);
    }
    for (int64_t i = start; i < n; i += step) {
      const Pack<T, N> of_s = load<N>(s + i), of_a = load<N>(ct_a + i);
      A next_w[N], products[N], ct[N];
      load_weight<N>(k.next.weight, i, k.next.offset, next_w);
      Pack<T, N> of_plus, to;
      if (plus != nullptr) of_plus = load<N>(plus + i);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const A unit = widen(of_s.at[j]) * next_r, cotangent = widen(of_a.at[j]);
        products[j] = cotangent * unit;
        ct[j] = next_r * (cotangent * next_w[j] - unit * next_mean);
        if (plus != nullptr) ct[j] += widen(of_plus.at[j]);
        to.at[j] = narrow<T>(ct[j]);
      }
      if (next_sums != nullptr) add_pack<N>(next_sums + i, products);
      if constexpr (kBranch) {
        const Pack<T, N> of_y = load<N>(y + i);
        A w[N];
        load_weight<N>(k.norm.weight, i, k.norm.offset, w);
        Pack<T, N> to_branch;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const A unit = widen(of_y.at[j]) * r;
          products[j] = ct[j] * unit;
          to_branch.at[j] = narrow<T>(r * (ct[j] * w[j] - unit * mean));
        }
        if (branch_sums != nullptr) add_pack<N>(branch_sums + i, products);
        store<N>(k.ct_y[row] + i, to_branch);
      }
      store<N>(k.ct_s[row] + i, to);
    }
    slot = slot + 1 == kDepth ? 0 : slot + 1;
    free_slot = free_slot + 1 == kDepth ? 0 : free_slot + 1;
  }
  if (!sums_are_shared) return;
  for (int64_t i = start; i < n; i += step) {  // what this thread summed
    for (int j = 0; j < N; ++j) {
      if (next_sums != nullptr) k.next_partials[mine + i + j] = next_sums[i + j];
      if (branch_sums != nullptr) k.partials[mine + i + j] = branch_sums[i + j];
    }
  }
}

constexpr int kChunkLanes = 8;

// Block of 32 columns x 8 lanes: lane l adds chunks l, l + 8, ...; then the lanes are added in order.
template <class T>
__global__ void add_chunks(const Accumulate<T>* partials, int64_t chunks, int64_t n, T* out) {
  __shared__ double lanes[kChunkLanes][kWarp];
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  double sum = 0;
  if (i < n) {
#pragma unroll 4
    for (int64_t chunk = threadIdx.y; chunk < chunks; chunk += kChunkLanes) sum += static_cast<double>(partials[chunk * n + i]);
  }
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || i >= n) return;
  for (int lane = 1; lane < kChunkLanes; ++lane) sum += lanes[lane][threadIdx.x];
  out[i] = narrow<T>(static_cast<Accumulate<T>>(sum));
}

// out [n] = the sum of the chunks.
template <class T>
void launch_add_chunks(cudaStream_t stream, const Accumulate<T>* partials, int64_t chunks, int64_t n, T* out) {
  if (n > 0)
    add_chunks<T><<<static_cast<unsigned>((n + kWarp - 1) / kWarp), dim3(kWarp, kChunkLanes), 0, stream>>>(partials, chunks, n, out);
}

template <class T>
bool weight_takes_packs(const T* weight, int n) {
  return reinterpret_cast<uintptr_t>(weight) % (static_cast<size_t>(n) * sizeof(T)) == 0;
}

// Threads for a row: as equal a share of its packs for each as fits into blocks of `most`.
inline int threads_for_row(int64_t n, int pack, int64_t most) {
  const int64_t packs = (n + pack - 1) / pack, each = std::max<int64_t>(1, (packs + most - 1) / most);
  return threads_for((packs + each - 1) / each, static_cast<int>(most));
}

constexpr size_t kMostShared = size_t{227} << 10;  // of one block
constexpr size_t kStaticShared = 4096;             // of that, for sums over the block

template <class T>
struct NormRows {
  Rows<const T> x, y;  // x: null where there is none
  NormOf<T> norm, next;
  Rows<T> out, normed;  // normed: null without the second norm
};

template <class T>
void launch_norm_rows(cudaStream_t stream, const NormRows<T>& k, int64_t rows, int64_t n) {
  if (rows == 0 || n == 0) return;
  const double over_n = 1.0 / static_cast<double>(n);
  const auto launch = [&](auto pack, auto has_next) {
    constexpr int N = decltype(pack)::value;
    const auto kernel = norm_rows<N, decltype(has_next)::value, T>;
    const int threads = threads_for_row(n, N, kNormThreads);
    const size_t stage = sizeof(T) * kDepth * (k.x.data != nullptr ? 2 : 1) * static_cast<size_t>(n);
    const bool is_staged = N > 1 && stage + kStaticShared <= kMostShared;
    if (is_staged) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kMostShared - kStaticShared));
    // Staged rows: as many blocks as run at once, in whole rounds of an H200's multiprocessors.
    const int64_t at_once = std::clamp<int64_t>(static_cast<int64_t>(kMostShared / (stage + kStaticShared)), 1, 2 * kNormThreads / threads);
    const int64_t blocks = is_staged ? std::min<int64_t>(rows, 132 * at_once) : std::min<int64_t>(rows, 1 << 20);
    kernel<<<static_cast<unsigned>(blocks), threads, is_staged ? stage : 0, stream>>>(k.x, k.y, k.norm, k.next, k.out, k.normed, rows, n,
                                                                                      over_n, is_staged);
  };
  const auto sized = [&](auto pack) {
    if (k.normed.data != nullptr)
      launch(pack, std::true_type{});
    else
      launch(pack, std::false_type{});
  };
  constexpr int N = kPackOf<T>;
  const auto packed = [&](const auto& each) { return takes_packs(each, rows, N); };
  if (n % N == 0 && packed(k.x) && packed(k.y) && packed(k.out) && packed(k.normed) && weight_takes_packs(k.norm.weight, N) &&
      weight_takes_packs(k.next.weight, N))
    sized(std::integral_constant<int, N>{});
  else
    sized(std::integral_constant<int, 1>{});
}

// ct_next_weight and ct_weight [n]: null without a weight. The partials' chunks are ops::num_cuda_chunks(rows, n).
template <class T>
void launch_norm_rows_vjp(cudaStream_t stream, const NormCotangents<T>& k, int64_t rows, int64_t n, T* ct_next_weight, T* ct_weight) {
  const int64_t most = ops::num_cuda_chunks(rows, n), rows_per_chunk = most == 0 ? 1 : (rows + most - 1) / most,
                chunks = n == 0 ? 0 : (rows + rows_per_chunk - 1) / rows_per_chunk;
  const double over_n = 1.0 / static_cast<double>(std::max<int64_t>(1, n));
  const auto launch = [&](auto pack, auto has_branch) {
    constexpr int N = decltype(pack)::value;
    constexpr bool kBranch = decltype(has_branch)::value;
    const auto kernel = norm_rows_vjp<N, kBranch, T>;
    const size_t stage = sizeof(T) * kDepth * static_cast<size_t>(((kBranch ? 3 : 2) + (k.plus.data != nullptr ? 1 : 0)) * n),
                 sums = sizeof(Accumulate<T>) * (kBranch ? 2 : 1) * static_cast<size_t>(n);
    const size_t budget = kMostShared - kStaticShared;
    const bool is_staged = N > 1 && stage <= budget, is_summed = sums + (is_staged ? stage : 0) <= budget;
    const size_t bytes = (is_staged ? stage : 0) + (is_summed ? sums : 0);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(budget));
    kernel<<<static_cast<unsigned>(chunks), threads_for_row(n, N, kNormVjpThreads), bytes, stream>>>(k, rows, rows_per_chunk, n, over_n,
                                                                                                     is_staged, is_summed);
  };
  const auto sized = [&](auto pack) {
    if (k.y.data != nullptr)
      launch(pack, std::true_type{});
    else
      launch(pack, std::false_type{});
  };
  constexpr int N = kPackOf<T>;
  const auto packed = [&](const auto& each) { return takes_packs(each, rows, N); };
  if (chunks > 0) {
    if (n % N == 0 && packed(k.s) && packed(k.ct_a) && packed(k.plus) && packed(k.y) && packed(k.ct_s) && packed(k.ct_y) &&
        weight_takes_packs(k.next.weight, N) && weight_takes_packs(k.norm.weight, N))
      sized(std::integral_constant<int, N>{});
    else
      sized(std::integral_constant<int, 1>{});
  }
  if (ct_next_weight != nullptr) launch_add_chunks(stream, k.next_partials, chunks, n, ct_next_weight);
  if (ct_weight != nullptr) launch_add_chunks(stream, k.partials, chunks, n, ct_weight);
}

}  // namespace glim::cuda
