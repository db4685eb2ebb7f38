#include "runtime/non_finite.h"

#include <fmt/format.h>

#include <cmath>

#include "ops/bf16.h"

namespace glim {
namespace {

template <class Real>
std::optional<std::string> search(const TensorView& view) {
  const int64_t rows = view.type.shape.rank == 2 ? view.type.shape[0] : 1, width = view.type.shape.numel() / std::max<int64_t>(1, rows);
  for (int64_t row = 0; row < rows; ++row) {
    const Real* at = view.as<Real>() + (rows > 1 ? row * view.row_stride : 0);
    for (int64_t column = 0; column < width; ++column) {
      const auto value = static_cast<double>(at[column]);
      if (std::isfinite(value)) continue;
      return view.type.shape.rank == 2 ? fmt::format("{} at [{}, {}]", value, row, column) : fmt::format("{} at [{}]", value, column);
    }
  }
  return std::nullopt;
}

std::optional<std::string> search(const TensorView& view) {
  switch (view.type.dtype) {
    case DType::kF64: return search<double>(view);
    case DType::kF32: return search<float>(view);
    case DType::kBF16: return search<Bf16>(view);
    default: return std::nullopt;
  }
}

}  // namespace

std::optional<std::string> find_non_finite_parameter(const Model& model) {
  for (const ModelParameter& parameter : model.compiled().parameters) {
    const Result<HostTensor> tensor = model.state(parameter.name);
    for (int64_t i = 0; tensor && i < tensor->type.shape.numel(); ++i) {
      if (!std::isfinite(tensor->at(i))) return fmt::format("parameter {}: {} at element {}", parameter.name, tensor->at(i), i);
    }
  }
  return std::nullopt;
}

Result<std::optional<std::string>> find_non_finite_node(Model& model, ProgramKind kind) {
  const Executable* executable = model.executable(kind);
  GLIM_CHECK(executable != nullptr, "the model was compiled without this program");
  const Graph& graph = executable->program().graph;
  std::optional<std::string> found;
  const StepWatch watch = [&](const BoundStep& step, std::span<const TensorView> outputs) {
    for (size_t k = 0; k < outputs.size() && !found && step.node.valid(); ++k) {
      const std::optional<std::string> place = search(outputs[k]);
      if (place) found = fmt::format("{} at {}, output {}: {}", graph.def(step.node).name, graph.describe_origin(step.node), k, *place);
    }
  };
  model.executor().set_watch(&watch);
  const Status status = model.run(kind);
  model.executor().set_watch(nullptr);
  GLIM_TRY(status);
  return found;
}

}  // namespace glim
