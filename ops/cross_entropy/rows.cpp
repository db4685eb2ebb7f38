#include "ops/cross_entropy/rows.h"

namespace glim::ops {

int64_t count_valid(const Labels& labels, KernelContext& context) {
  int64_t count = 0;
  bool reported = false;
  for (int64_t row = 0; row < labels.num_rows; ++row) {
    if (labels.valid(row)) {
      ++count;
    } else if (labels.values[row] != labels.ignore_index && !reported) {
      reported = true;
      context.fail(fmt::format("label {} at position {} is outside [0, {}) and is not ignore_index ({})", labels.values[row], row,
                               labels.vocabulary, labels.ignore_index));
    }
  }
  return count;
}

namespace {
double mean_over(const TensorView& denominator, int64_t num_valid) {
  return denominator.present() ? scalar(denominator) : static_cast<double>(num_valid);
}

template <class A>
void reduce(const Labels& labels, int64_t num_valid, const TensorView& denominator, Reduction reduction, std::span<const TensorView> out) {
  double sum = 0;
  int64_t correct = 0;
  for (int64_t row = 0; row < labels.num_rows; ++row) {
    if (!labels.valid(row)) continue;
    sum += static_cast<double>(out[kRowLoss].as<A>()[row]);
    correct += out[kRowPrediction].as<int32_t>()[row] == labels.values[row];
  }
  const double divisor = mean_over(denominator, num_valid);
  *out[kLoss].as<A>() = static_cast<A>(reduction == Reduction::kSum ? sum : divisor == 0 ? 0 : sum / divisor);
  *out[kTokenAccuracy].as<A>() = static_cast<A>(num_valid == 0 ? 0 : static_cast<double>(correct) / static_cast<double>(num_valid));
  *out[kNumCorrect].as<int64_t>() = correct;
  *out[kNumValid].as<int64_t>() = num_valid;
}
}  // namespace

void reduce_rows(const Labels& labels, int64_t num_valid, const TensorView& denominator, Reduction reduction,
                 std::span<const TensorView> out) {
  if (out[kLoss].type.dtype == DType::kF64)
    reduce<double>(labels, num_valid, denominator, reduction, out);
  else
    reduce<float>(labels, num_valid, denominator, reduction, out);
}

double loss_coefficient(const TensorView& ct_loss, const TensorView& denominator, int64_t num_valid, Reduction reduction) {
  if (!ct_loss.present()) return 0;
  if (reduction == Reduction::kSum) return scalar(ct_loss);
  const double divisor = mean_over(denominator, num_valid);
  return divisor == 0 ? 0 : scalar(ct_loss) / divisor;
}

Status check_targets(const TensorType& labels, const TensorType* denominator, int64_t num_rows, DType accumulation) {
  const TensorType targets{DType::kI32, {num_rows}}, one{accumulation, {1}};
  GLIM_EXPECT(labels == targets, "labels must be {}, not {}", to_string(targets), to_string(labels));
  GLIM_EXPECT(denominator == nullptr || *denominator == one, "the denominator must be {}, not {}", to_string(one), to_string(*denominator));
  return ok();
}

Types cross_entropy_types(int64_t num_rows, DType accumulation) {
  const TensorType one{accumulation, {1}}, count{DType::kI64, {1}}, per_row{accumulation, {num_rows}};
  return {one, one, count, count, per_row, {DType::kI32, {num_rows}}, per_row};
}

Status check_saved(const TensorType& num_valid, const TensorType& row_lse, const TensorType* ct_loss, const TensorType* ct_row_loss,
                   int64_t num_rows, DType accumulation) {
  const TensorType one{accumulation, {1}}, count{DType::kI64, {1}}, per_row{accumulation, {num_rows}};
  GLIM_EXPECT(num_valid == count, "num_valid must be {}, not {}", to_string(count), to_string(num_valid));
  GLIM_EXPECT(row_lse == per_row, "row_lse must be {}, not {}", to_string(per_row), to_string(row_lse));
  GLIM_EXPECT(ct_loss != nullptr || ct_row_loss != nullptr, "one of ct_loss and ct_row_loss must be there");
  GLIM_EXPECT(ct_loss == nullptr || *ct_loss == one, "ct_loss must be {}, not {}", to_string(one), to_string(*ct_loss));
  GLIM_EXPECT(ct_row_loss == nullptr || *ct_row_loss == per_row, "ct_row_loss must be {}, not {}", to_string(per_row),
              to_string(*ct_row_loss));
  return ok();
}

}  // namespace glim::ops
