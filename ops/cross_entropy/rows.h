#pragma once
// What the CPU kernels of cross_entropy and linear_cross_entropy share: labels, one row of logits, and the sums over rows.
#include "ops/cpu.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/vector_math.h"

namespace glim::ops {

struct Labels {
  const int32_t* values;  // [T]
  int64_t num_rows, vocabulary;
  int64_t ignore_index;
  // A label out of range has been reported (see count_valid) and counts as ignored.
  [[nodiscard]] bool valid(int64_t row) const { return values[row] != ignore_index && values[row] >= 0 && values[row] < vocabulary; }
};

// Counts the rows with a target, and reports the first label that is neither in range nor ignore_index.
int64_t count_valid(const Labels& labels, KernelContext& context);

// For one row of valid label: fills row_loss, row_prediction and row_lse.
template <class A, class T>
void row_statistics(const T* logits, int64_t vocabulary, int32_t label, A& loss, int32_t& prediction, A& lse) {
  const A top = cpu::lane_max<A>(vocabulary, [&](int64_t j) { return static_cast<A>(logits[j]); });
  // Nothing is equal to `top` only when every logit is NaN.
  int64_t first = 0;
  while (first < vocabulary && static_cast<A>(logits[first]) != top) ++first;
  prediction = static_cast<int32_t>(first < vocabulary ? first : 0);
  const double sum = cpu::lane_sum<A>(vocabulary, [&](int64_t j) { return cpu::fast_exp(static_cast<A>(logits[j]) - top); });
  lse = static_cast<A>(static_cast<double>(top) + std::log(sum));
  loss = static_cast<A>(static_cast<double>(top) - static_cast<double>(static_cast<A>(logits[label])) + std::log(sum));
}

template <class A>
void ignored_row(A& loss, int32_t& prediction, A& lse) {
  loss = 0;
  prediction = -1;
  lse = 0;
}

// The four sums, from row_loss and row_prediction; `out` are the op's outputs.
void reduce_rows(const Labels& labels, int64_t num_valid, const TensorView& denominator, Reduction reduction,
                 std::span<const TensorView> out);

// The factor of (softmax - onehot) that a loss cotangent contributes to every valid row: ct_loss over the denominator.
double loss_coefficient(const TensorView& ct_loss, const TensorView& denominator, int64_t num_valid, Reduction reduction);

// The scalar in an f32 or f64 tensor of one element.
inline double scalar(const TensorView& view) {
  return view.type.dtype == DType::kF64 ? *view.as<double>() : static_cast<double>(*view.as<float>());
}

// infer: labels i32[T], denominator acc[1], and the seven output types.
Status check_targets(const TensorType& labels, const TensorType* denominator, int64_t num_rows, DType accumulation);
Types cross_entropy_types(int64_t num_rows, DType accumulation);
// infer of the vjps: num_valid i64[1], row_lse acc[T], and at least one of ct_loss acc[1] and ct_row_loss acc[T].
Status check_saved(const TensorType& num_valid, const TensorType& row_lse, const TensorType* ct_loss, const TensorType* ct_row_loss,
                   int64_t num_rows, DType accumulation);

}  // namespace glim::ops
