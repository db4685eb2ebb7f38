#include "tests/ops/case_inputs.h"

#include <algorithm>
#include <random>

namespace glim::testing {
namespace {

constexpr int64_t kIgnored = -100;

// Cumulative segment starts: uneven lengths, one of them empty, the last bound = num_rows.
std::vector<double> make_segments(int64_t count, int64_t num_rows) {
  std::vector<double> starts(static_cast<size_t>(count), 0.0);
  const int64_t num_segments = count - 1;
  for (int64_t k = 1; k < count; ++k)
    starts[static_cast<size_t>(k)] = static_cast<double>(num_rows * k * k / (num_segments * num_segments));
  if (num_segments >= 3) starts[2] = starts[1];
  return starts;
}

}  // namespace

std::vector<double> random_normal(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) value = normal(random);
  return values;
}

DType dtype_of(const CaseInput& input, DType real) {
  switch (input.dtype) {
    case CaseDType::kReal: return real;
    case CaseDType::kAccumulation: return accumulation_dtype(real);
    case CaseDType::kI32: return DType::kI32;
    case CaseDType::kI64: return DType::kI64;
    case CaseDType::kF64: return DType::kF64;
  }
  return real;
}

std::vector<Tensor> make_inputs(const OpCase& op_case, DType real) {
  std::vector<Tensor> inputs;
  for (size_t k = 0; k < op_case.inputs.size(); ++k) {
    const CaseInput& input = op_case.inputs[k];
    const int64_t count = input.shape.numel();
    std::vector<double> values(static_cast<size_t>(count));
    std::mt19937_64 random(1000 + k);
    const auto below = [&](int64_t limit) {
      return static_cast<double>(limit > 0 ? static_cast<int64_t>(random() % static_cast<uint64_t>(limit)) : 0);
    };
    switch (input.fill) {
      case Fill::kAbsent: inputs.emplace_back(); continue;
      case Fill::kNormal: values = random_normal(count, 77 + k); break;
      case Fill::kPositive:
        for (double& value : values) value = 0.2 + below(1000) / 1000;
        break;
      case Fill::kIndices:
        for (double& value : values) value = below(input.limit);
        break;
      case Fill::kLabels:
        for (size_t i = 0; i < values.size(); ++i) values[i] = i % 4 == 2 ? static_cast<double>(kIgnored) : below(input.limit);
        break;
      case Fill::kSegments: values = make_segments(count, input.limit > 0 ? input.limit : op_case.inputs[0].shape[0]); break;
      case Fill::kPositions:
        for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 11 + 1);
        break;
      case Fill::kOne: std::fill(values.begin(), values.end(), 1.0); break;
      case Fill::kZero: break;
    }
    inputs.emplace_back(TensorType{dtype_of(input, real), input.shape}, values);
  }
  return inputs;
}

std::vector<const Tensor*> operands_of(const OpCase& op_case, const std::vector<Tensor>& inputs) {
  std::vector<const Tensor*> operands;
  for (size_t k = 0; k < inputs.size(); ++k) operands.push_back(op_case.inputs[k].fill == Fill::kAbsent ? nullptr : &inputs[k]);
  return operands;
}

}  // namespace glim::testing
