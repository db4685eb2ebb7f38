// Loss, accuracy and counts of logits [T, V], and the cotangent (ct_loss / n + ct_row_loss) (softmax - onehot).
// Accumulation rule: one block per row; a thread keeps a running maximum and sum (online softmax, arXiv:1805.02867) over its logits in
// f32 (f64 in f64 runs); a block combines its threads in a fixed order; sums over rows are f64, in one block. No atomics: the same bits
// every time. A label that is out of range counts as ignored, and is an error at the end of the step.
#include "ops/cross_entropy/rows.cuh"

namespace glim::cuda {
namespace {

// Calls f(j, logits[j]) for the elements of a row that are this thread's, in ascending order. N > 1: rows are aligned for packs.
template <int N, class T, class F>
__device__ void for_row(const T* logits, int64_t width, F&& f) {
  const int64_t whole = width / N * N;
  for (int64_t j = static_cast<int64_t>(threadIdx.x) * N; j < whole; j += static_cast<int64_t>(blockDim.x) * N) {
    const Pack<T, N> pack = load<N>(logits + j);
#pragma unroll
    for (int i = 0; i < N; ++i) f(j + i, pack.at[i]);
  }
  for (int64_t j = whole + threadIdx.x; j < width; j += blockDim.x) f(j, logits[j]);
}

template <int N, class T>
__global__ void __launch_bounds__(kRowThreads)
    row_statistics(Rows<const T> logits, Targets targets, Accumulate<T>* row_loss, int32_t* prediction, Accumulate<T>* row_lse) {
  using A = Accumulate<T>;
  const int64_t row = blockIdx.x;
  if (!targets.valid(row)) {
    if (threadIdx.x == 0) {
      row_loss[row] = 0;
      prediction[row] = -1;
      row_lse[row] = 0;
    }
    return;
  }
  Running<A> mine{lowest(A()), 0, INT32_MAX};
  for_row<N>(logits[row], targets.vocabulary, [&](int64_t j, T x) { take(mine, widen(x), j); });
  const Running<A> all = block_combine(mine);
  if (threadIdx.x != 0) return;
  const double log_sum = log(static_cast<double>(all.sum));
  row_loss[row] = static_cast<A>(static_cast<double>(all.top) - static_cast<double>(widen(logits[row][targets.labels[row]])) + log_sum);
  prediction[row] = all.index == INT32_MAX ? 0 : all.index;
  row_lse[row] = static_cast<A>(static_cast<double>(all.top) + log_sum);
}

// ct_logits may lie on logits: a thread writes where only it reads.
template <int N, class T>
__global__ void __launch_bounds__(kRowThreads)
    row_cotangents(Rows<const T> logits, Targets targets, Divisor<Accumulate<T>> divisor, bool is_mean, const Accumulate<T>* row_lse,
                   const Accumulate<T>* ct_loss, const Accumulate<T>* ct_row_loss, Rows<T> ct_logits) {
  using A = Accumulate<T>;
  const int64_t row = blockIdx.x;
  const bool is_valid = targets.valid(row);
  const int32_t label = targets.labels[row];
  double coefficient = ct_row_loss != nullptr ? static_cast<double>(ct_row_loss[row]) : 0;
  if (ct_loss != nullptr) {
    const double over = is_mean ? divisor.value() : 1;
    if (over != 0) coefficient += static_cast<double>(*ct_loss) / over;
  }
  const A factor = static_cast<A>(coefficient), lse = row_lse[row];
  const auto cotangent = [&](int64_t j, T x) {
    return is_valid ? narrow<T>(factor * (exp_of(widen(x) - lse) - (j == label ? A(1) : A(0)))) : narrow<T>(A(0));
  };
  const T* const from = logits[row];
  T* const to = ct_logits[row];
  const int64_t whole = targets.vocabulary / N * N;
  for (int64_t j = static_cast<int64_t>(threadIdx.x) * N; j < whole; j += static_cast<int64_t>(blockDim.x) * N) {
    Pack<T, N> pack = load<N>(from + j);
#pragma unroll
    for (int i = 0; i < N; ++i) pack.at[i] = cotangent(j + i, pack.at[i]);
    store<N>(to + j, pack);
  }
  for (int64_t j = whole + threadIdx.x; j < targets.vocabulary; j += blockDim.x) to[j] = cotangent(j, from[j]);
}

}  // namespace

void cross_entropy(const KernelArgs& k) {
  const auto attrs = k.attrs<ops::CrossEntropyAttrs>();
  const int64_t rows = k.in[0].type.shape[0], vocabulary = k.in[0].type.shape[1];
  const Targets targets{k.in[1].as<int32_t>(), rows, vocabulary, attrs.ignore_index};
  auto* const num_valid = k.out[ops::kNumValid].as<int64_t>();
  count_valid<<<1, kScalarThreads, 0, stream(k)>>>(targets, num_valid, label_fault(k, vocabulary));
  dispatch_float(k.in[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = Accumulate<T>;
    const Rows<const T> logits = rows_of<const T>(k.in[0]);
    A* const row_loss = k.out[ops::kRowLoss].as<A>();
    auto* const prediction = k.out[ops::kRowPrediction].as<int32_t>();
    if (rows > 0) {
      const auto blocks = static_cast<unsigned>(rows);
      constexpr int N = kPackOf<T>;
      if (takes_packs(logits, rows, N))
        row_statistics<N, T><<<blocks, threads_for((vocabulary + N - 1) / N, kRowThreads), 0, stream(k)>>>(
            logits, targets, row_loss, prediction, k.out[ops::kRowLse].as<A>());
      else
        row_statistics<1, T><<<blocks, threads_for(vocabulary, kRowThreads), 0, stream(k)>>>(logits, targets, row_loss, prediction,
                                                                                             k.out[ops::kRowLse].as<A>());
    }
    finish<A><<<1, kScalarThreads, 0, stream(k)>>>(targets, {k.in[2].as<A>(), num_valid}, attrs.reduction == ops::Reduction::kMean,
                                                   row_loss, prediction, k.out[ops::kLoss].as<A>(), k.out[ops::kTokenAccuracy].as<A>(),
                                                   k.out[ops::kNumCorrect].as<int64_t>());
  });
}

void cross_entropy_vjp(const KernelArgs& k) {
  const auto attrs = k.attrs<ops::CrossEntropyAttrs>();
  const int64_t rows = k.in[0].type.shape[0], vocabulary = k.in[0].type.shape[1];
  if (rows == 0) return;
  const Targets targets{k.in[1].as<int32_t>(), rows, vocabulary, attrs.ignore_index};
  dispatch_float(k.in[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = Accumulate<T>;
    const Rows<const T> logits = rows_of<const T>(k.in[0]);
    const Rows<T> out = rows_of<T>(k.out[0]);
    const Divisor<A> divisor{k.in[2].as<A>(), k.in[3].as<int64_t>()};
    const auto launch = [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      row_cotangents<N, T><<<static_cast<unsigned>(rows), threads_for((vocabulary + N - 1) / N, kRowThreads), 0, stream(k)>>>(
          logits, targets, divisor, attrs.reduction == ops::Reduction::kMean, k.in[4].as<A>(), k.in[5].as<A>(), k.in[6].as<A>(), out);
    };
    constexpr int N = kPackOf<T>;
    if (takes_packs(logits, rows, N) && takes_packs(out, rows, N))
      launch(std::integral_constant<int, N>{});
    else
      launch(std::integral_constant<int, 1>{});
  });
}

}  // namespace glim::cuda
