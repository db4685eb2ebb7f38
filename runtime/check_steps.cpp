#include "runtime/check_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace glim {
namespace {

constexpr size_t kShown = 8;
constexpr double kBounds[] = {1e-11, 1e-5, 1e-2};  // by DType: f64, f32, bf16 (results are rounded by at most 2^-9)

Result<HostTensor> read(Model& model, const TensorView& view) {
  HostTensor tensor{view.type, std::vector<std::byte>(view.type.bytes())};
  GLIM_TRY(model.executor().read(view, tensor.bytes));
  return tensor;
}

double relative_error(const HostTensor& found, const HostTensor& expected, ThreadPool& pool) {
  constexpr int64_t kPerTask = 65536;
  const int64_t count = expected.type.shape.numel(), num_tasks = (count + kPerTask - 1) / kPerTask;
  std::vector<double> differences(static_cast<size_t>(num_tasks)), norms(differences);
  pool.parallel_for(num_tasks, [&](int64_t task) {
    double difference = 0, norm = 0;
    for (int64_t i = task * kPerTask; i < std::min(count, (task + 1) * kPerTask); ++i) {
      const double a = found.at(i), b = expected.at(i);
      difference += (a - b) * (a - b);
      norm += b * b;
    }
    differences[static_cast<size_t>(task)] = difference;
    norms[static_cast<size_t>(task)] = norm;
  });
  const double difference = std::accumulate(differences.begin(), differences.end(), 0.0);
  const double norm = std::accumulate(norms.begin(), norms.end(), 0.0);
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

}  // namespace

Result<std::vector<CheckLine>> check_steps(Model& found, Model& expected, ProgramKind kind, DType real) {
  const Executable &mine = *found.executable(kind), &reference = *expected.executable(kind);
  const Graph& graph = reference.program().graph;
  std::vector<CheckLine> lines;
  for (size_t index = 0; index < reference.steps().size(); ++index) {
    const BoundStep& step = reference.steps()[index];
    const std::span<const TensorView> in = mine.inputs(mine.steps()[index]), out = mine.outputs(mine.steps()[index]);
    for (size_t k = 0; k < in.size(); ++k) {
      if (!in[k].present()) continue;
      GLIM_ASSIGN(const HostTensor operand, read(expected, reference.inputs(step)[k]));
      GLIM_TRY(found.executor().write(in[k], operand.bytes));
    }
    GLIM_TRY(expected.executor().run_step(reference, index));
    GLIM_TRY(found.executor().run_step(mine, index));
    if (step.kind != BoundStep::Kind::kKernel) continue;
    CheckLine line{fmt::format("{}: {} at {}", to_string(real), step.def->name, graph.describe_origin(step.node)), 0,
                   kBounds[static_cast<size_t>(real)]};
    for (size_t k = 0; k < out.size(); ++k) {
      GLIM_ASSIGN(const HostTensor right, read(expected, reference.outputs(step)[k]));
      GLIM_ASSIGN(const HostTensor got, read(found, out[k]));
      const double error = relative_error(got, right, expected.executor().pool());
      if (!(error <= line.error)) line.error = error;  // NaN, too
      // What comes next starts from the same values, even where a later step reads what no step of its own wrote.
      GLIM_TRY(found.executor().write(out[k], right.bytes));
    }
    lines.push_back(std::move(line));
  }
  std::stable_sort(lines.begin(), lines.end(), [](const CheckLine& a, const CheckLine& b) {
    return std::isnan(a.error) != std::isnan(b.error) ? std::isnan(a.error) : a.error > b.error;
  });
  const auto num_failed = std::count_if(lines.begin(), lines.end(), [](const CheckLine& line) { return !line.passed(); });
  const CheckLine all{fmt::format("{}: steps out of bounds, of {}", to_string(real), lines.size()), static_cast<double>(num_failed), 0};
  if (lines.size() > kShown) lines.resize(kShown);
  lines.push_back(all);
  return lines;
}

}  // namespace glim
