#pragma once
// An op of the host's own: snake(x) = x + sin(alpha x)^2 / alpha (Ziyin, Hartwig and Ueda, NeurIPS 2020), and the kernel of its gradient as
// a second op.
#include <cmath>

#include <glim/glim.h>

namespace embedding {

// Calls f(x, out element) over f32 or f64 tensors of one shape, in parallel.
template <class F>
void for_each_row(const glim::KernelCall& call, F&& f) {
  const auto run = [&](auto element) {
    using T = decltype(element);
    call.parallel_for(call.outputs[0].rows(), [&](int64_t row) {
      for (int64_t j = 0; j < call.outputs[0].width(); ++j) {
        const double other = call.inputs.size() > 1 ? static_cast<double>(call.inputs[1].row<T>(row)[j]) : 0;
        call.outputs[0].row<T>(row)[j] = static_cast<T>(f(static_cast<double>(call.inputs[0].row<T>(row)[j]), other));
      }
    });
  };
  call.outputs[0].dtype == glim::DType::kF64 ? run(double{}) : run(float{});
}

inline glim::Result<std::vector<glim::TensorType>> same_as_first(const glim::OpTypes& types) {
  const glim::TensorType& first = *types.inputs[0];
  if (first.dtype != glim::DType::kF32 && first.dtype != glim::DType::kF64)
    return glim::Error{glim::ErrorCode::kInvalidArgument, "the operand must be f32 or f64, not " + std::string(to_string(first.dtype)), "",
                       0, 0};
  return std::vector<glim::TensorType>{first};
}

inline glim::Op snake() {
  glim::Op op;
  op.name = "snake";
  op.summary = "in + sin(alpha in)^2 / alpha";
  op.operands = {{"in"}};
  op.attributes = {{"alpha", 1.0, true, "its frequency"}};
  op.infer = same_as_first;
  op.kernel = [](const glim::KernelCall& call) {
    const double alpha = call.attributes.real("alpha");
    for_each_row(call, [alpha](double x, double) { return x + std::sin(alpha * x) * std::sin(alpha * x) / alpha; });
  };
  op.vjp = [](glim::GraphBuilder& graph, const glim::VjpCall& call) -> glim::Result<std::vector<glim::Value>> {
    const glim::AttributeValues attributes{{"alpha", call.attributes.real("alpha")}};
    return std::vector<glim::Value>{graph.emit("snake_grad", {call.inputs[0], call.cotangents[0]}, attributes)};
  };
  return op;
}

inline glim::Op snake_grad() {
  glim::Op op;
  op.name = "snake_grad";
  op.operands = {{"in"}, {"cotangent"}};
  op.attributes = {{"alpha", 1.0, true, "its frequency"}};
  op.infer = same_as_first;
  op.kernel = [](const glim::KernelCall& call) {
    const double alpha = call.attributes.real("alpha");
    for_each_row(call, [alpha](double x, double cotangent) { return cotangent * (1 + std::sin(2 * alpha * x)); });
  };
  op.cost = [](const glim::OpTypes& types) { return glim::Cost{20.0 * static_cast<double>(types.outputs[0].num_elements()), 0}; };
  return op;
}

}  // namespace embedding
