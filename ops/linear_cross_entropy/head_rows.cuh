#pragma once
// The kernels of head.cu: which rows have a valid label, moving them, and what becomes of a row of logits.
#include "ops/cross_entropy/rows.cuh"

namespace glim::cuda {

template <class A>
struct RowPass {
  A* chunk;             // [rows of the chunk, V]: multiplied logits; for the backward pass, their cotangents afterwards
  const int32_t* rows;  // [rows of the chunk]: which row of the whole tensor; -1 = none
  A cap;                // 0 = none
  Targets targets;
  Divisor<A> divisor;
  bool is_mean, forward, backward;
  A* row_loss;           // forward: outputs
  int32_t* prediction;   // forward
  A* row_lse;            // forward: output, otherwise saved
  const A* ct_loss;      // [1] or null
  const A* ct_row_loss;  // [T] or null
};

// The rows with a valid label in their order, then -1 up to `length`. One block.
static __global__ void __launch_bounds__(kScalarThreads) list_valid(Targets targets, int64_t length, int32_t* list, int64_t* count) {
  __shared__ int before[kScalarThreads];
  const int64_t each = (targets.rows + blockDim.x - 1) / blockDim.x, first = threadIdx.x * each;
  const int64_t last = first + each < targets.rows ? first + each : targets.rows;
  int mine = 0;
  for (int64_t row = first; row < last; ++row) mine += targets.valid(row);
  before[threadIdx.x] = mine;
  __syncthreads();
  int64_t at = 0, all = 0;
  for (unsigned thread = 0; thread < blockDim.x; ++thread) {
    if (thread < threadIdx.x) at += before[thread];
    all += before[thread];
  }
  for (int64_t row = first; row < last; ++row) {
    if (targets.valid(row)) list[at++] = static_cast<int32_t>(row);
  }
  for (int64_t k = all + threadIdx.x; k < length; k += blockDim.x) list[k] = -1;
  if (threadIdx.x == 0) *count = all;
}

// What rows without a valid label get. Threads are x along a row of ct_in (null: none) and y along rows.
template <class T, class A>
__global__ void fill_ignored(Targets targets, int64_t width, Rows<T> ct_in, A* row_loss, int32_t* prediction, A* row_lse) {
  for (int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < targets.rows;
       row += static_cast<int64_t>(gridDim.y) * blockDim.y) {
    if (targets.valid(row)) continue;
    const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row_loss != nullptr && first == 0) {
      row_loss[row] = 0;
      prediction[row] = -1;
      row_lse[row] = 0;
    }
    for (int64_t j = first; ct_in.data != nullptr && j < width; j += static_cast<int64_t>(gridDim.x) * blockDim.x)
      ct_in[row][j] = narrow<T>(A(0));
  }
}

// kInto: packed row k = row list[k] of `all`, zeros where there is none; otherwise the other way. Words as in copy_table_rows.
template <bool kInto, class Word>
__global__ void move_rows(const int32_t* list, int64_t count, int64_t words, Rows<Word> all, Rows<Word> packed) {
  for (int64_t k = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; k < count;
       k += static_cast<int64_t>(gridDim.y) * blockDim.y) {
    const int32_t row = list[k];
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
      if constexpr (kInto)
        packed[k][i] = row >= 0 ? all[row][i] : Word{};
      else if (row >= 0)
        all[row][i] = packed[k][i];
    }
  }
}

// In bf16 runs the hardware's exponential is exact enough: an absolute error of some 1e-6 in a logit that was made of bf16 numbers.
template <class S, class A>
__device__ A fast_exp(A x) {
  if constexpr (std::is_same_v<S, __nv_bfloat16>)
    return __expf(x);
  else
    return exp_of(x);
}
template <class S, class A>
__device__ A fast_tanh(A x) {
  if constexpr (std::is_same_v<S, __nv_bfloat16>)
    return 1 - __fdividef(2, 1 + __expf(2 * x));
  else
    return tanh_of(x);
}

// One block per row, packs of N logits per thread. Cotangents are stored as S (bf16 in bf16 runs) from the start of the row's bytes: what
// a tile of threads writes lies behind everything that is still to be read, once the tile's own reads are done.
template <class A, class S, int N>
__global__ void __launch_bounds__(kRowThreads) head_rows(RowPass<A> p) {
  const int64_t row = p.rows[blockIdx.x], vocabulary = p.targets.vocabulary;
  const A* logits = p.chunk + static_cast<int64_t>(blockIdx.x) * vocabulary;
  S* gradient = reinterpret_cast<S*>(p.chunk + static_cast<int64_t>(blockIdx.x) * vocabulary);
  const int64_t first = static_cast<int64_t>(threadIdx.x) * N, tile = static_cast<int64_t>(blockDim.x) * N;
  if (row < 0) {
    for (int64_t j = first; p.backward && j < vocabulary; j += tile) store<N>(gradient + j, Pack<S, N>{});
    return;
  }
  const int32_t label = p.targets.labels[row];
  const A inverse_cap = p.cap > 0 ? 1 / p.cap : A(0);
  const auto capped = [&](A logit) { return p.cap > 0 ? p.cap * fast_tanh<S>(logit * inverse_cap) : logit; };
  A lse = 0;
  if (p.forward) {
    const A at_label = capped(logits[label]);  // before anybody overwrites it
    Running<A> mine{lowest(A()), 0, INT32_MAX};
    for (int64_t j = first; j < vocabulary; j += tile) {
      Pack<A, N> y = load<N>(logits + j);
      A top = mine.top;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        y.at[i] = capped(y.at[i]);
        if (y.at[i] > top) {
          top = y.at[i];
          mine.index = static_cast<int32_t>(j + i);
        }
      }
      if (top > mine.top) {
        mine.sum *= fast_exp<S>(mine.top - top);
        mine.top = top;
      }
#pragma unroll
      for (int i = 0; i < N; ++i) mine.sum += fast_exp<S>(y.at[i] - top);
    }
    const Running<A> all = block_combine(mine);
    const double log_sum = log(static_cast<double>(all.sum));
    lse = static_cast<A>(static_cast<double>(all.top) + log_sum);
    if (threadIdx.x == 0) {
      p.row_loss[row] = static_cast<A>(static_cast<double>(all.top) - static_cast<double>(at_label) + log_sum);
      p.prediction[row] = all.index == INT32_MAX ? 0 : all.index;
      p.row_lse[row] = lse;
    }
  } else {
    lse = p.row_lse[row];
  }
  if (!p.backward) return;
  double coefficient = p.ct_row_loss != nullptr ? static_cast<double>(p.ct_row_loss[row]) : 0;
  if (p.ct_loss != nullptr) {
    const double divisor = p.is_mean ? p.divisor.value() : 1;
    if (divisor != 0) coefficient += static_cast<double>(*p.ct_loss) / divisor;
  }
  const A factor = static_cast<A>(coefficient);
  for (int64_t begin = 0; begin < vocabulary; begin += tile) {
    const int64_t j = begin + first;
    Pack<S, N> value;
    if (j < vocabulary) {
      const Pack<A, N> pack = load<N>(logits + j);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const A y = capped(pack.at[i]), bend = y * inverse_cap;
        value.at[i] = narrow<S>(factor * (fast_exp<S>(y - lse) - (j + i == label ? A(1) : A(0))) * (1 - bend * bend));
      }
    }
    if constexpr (sizeof(S) != sizeof(A)) __syncthreads();
    if (j < vocabulary) store<N>(gradient + j, value);
  }
}

}  // namespace glim::cuda
