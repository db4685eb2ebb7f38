#pragma once
// What the CUDA kernels of cross_entropy and linear_cross_entropy share: labels, the softmax statistics of a row, and the sums over rows.
#include "ops/cross_entropy/cross_entropy_attrs.h"
#include "ops/device/math.cuh"

namespace glim::cuda {

constexpr int kRowThreads = 512, kScalarThreads = 1024;

struct Targets {
  const int32_t* labels;  // [T]
  int64_t rows, vocabulary, ignore_index;
  __device__ bool valid(int64_t row) const { return labels[row] != ignore_index && labels[row] >= 0 && labels[row] < vocabulary; }
};

template <class A>
struct Divisor {
  const A* denominator;      // [1] or null: num_valid
  const int64_t* num_valid;  // [1]
  __device__ double value() const { return denominator != nullptr ? static_cast<double>(*denominator) : static_cast<double>(*num_valid); }
};

// Of a forward op.
inline uint64_t* label_fault(const KernelArgs& k, int64_t vocabulary) {
  return k.context.data_fault("label", vocabulary, " and is not ignore_index");
}

static __global__ void __launch_bounds__(kScalarThreads) count_valid(Targets targets, int64_t* num_valid, uint64_t* fault) {
  int count = 0;
  for (int64_t row = threadIdx.x; row < targets.rows; row += blockDim.x) {
    const bool is_valid = targets.valid(row);
    count += is_valid;
    if (!is_valid && targets.labels[row] != targets.ignore_index) report_value(fault, row, targets.labels[row]);
  }
  count = block_sum(count);
  if (threadIdx.x == 0) *num_valid = count;
}

// The largest value so far, where it was first seen, and the sum of exp(value - top).
template <class A>
struct Running {
  A top, sum;
  int32_t index;
};

template <class A>
__device__ void take(Running<A>& running, A value, int64_t index) {
  if (value > running.top)
    running = {value, running.sum * exp_of(running.top - value) + 1, static_cast<int32_t>(index)};
  else
    running.sum += exp_of(value - running.top);
}

template <class A>
__device__ Running<A> combine(const Running<A>& a, const Running<A>& b) {
  const bool is_a = a.top > b.top || (a.top == b.top && a.index <= b.index);
  const A top = is_a ? a.top : b.top;
  // NaN spreads through the sums; a thread that saw nothing has sum 0.
  return {top, a.sum * exp_of(a.top - top) + b.sum * exp_of(b.top - top), is_a ? a.index : b.index};
}

template <class A>
__device__ Running<A> block_combine(Running<A> mine) {
  __shared__ Running<A> partial[kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Running<A> other{__shfl_down_sync(0xffffffffU, mine.top, offset), __shfl_down_sync(0xffffffffU, mine.sum, offset),
                           __shfl_down_sync(0xffffffffU, mine.index, offset)};
    mine = combine(mine, other);
  }
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = mine;
  __syncthreads();
  Running<A> all = partial[0];
  for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) all = combine(all, partial[warp]);
  return all;
}

template <class A>
__global__ void __launch_bounds__(kScalarThreads) finish(Targets targets, Divisor<A> divisor, bool is_mean, const A* row_loss,
                                                         const int32_t* prediction, A* loss, A* token_accuracy, int64_t* num_correct) {
  double sum = 0;
  int correct = 0;
  for (int64_t row = threadIdx.x; row < targets.rows; row += blockDim.x) {
    if (!targets.valid(row)) continue;
    sum += static_cast<double>(row_loss[row]);
    correct += prediction[row] == targets.labels[row];
  }
  sum = block_sum(sum);
  correct = block_sum(correct);
  if (threadIdx.x != 0) return;
  const double over = is_mean ? divisor.value() : 1;
  const auto valid = static_cast<double>(*divisor.num_valid);
  *loss = static_cast<A>(over == 0 ? 0 : sum / over);
  *token_accuracy = static_cast<A>(valid == 0 ? 0 : correct / valid);
  *num_correct = correct;
}

}  // namespace glim::cuda
