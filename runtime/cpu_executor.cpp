#include "runtime/cpu_executor.h"

#include <fmt/format.h>

#include <chrono>

#include "ops/cpu_regions.h"

namespace glim {

void CpuExecutor::copy(const TensorView& from, const TensorView& to) { cpu::copy_region(*this, from, {}, to, {}, to.type.shape); }

void CpuExecutor::fail(std::string message) {
  const std::lock_guard lock(failure_mutex_);
  if (!has_failed_) failure_ = std::move(message);
  has_failed_ = true;
}

Status CpuExecutor::run(const Executable& executable) {
  has_failed_ = false;
  NodeId failed_at;
  size_t index = 0;
  for (const BoundStep& step : executable.steps()) {
    if (cancellation_ != nullptr && cancellation_->load(std::memory_order_relaxed)) {
      return Error{ErrorCode::kCancelled, fmt::format("the program '{}' was cancelled", executable.program().name)};
    }
    const auto start = profile_ != nullptr ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point{};
    const std::span<const TensorView> in = executable.inputs(step), out = executable.outputs(step);
    // One step after the other: there is nothing to do about events.
    if (step.kind == BoundStep::Kind::kCopy)
      copy(in[0], out[0]);
    else if (step.kind == BoundStep::Kind::kKernel)
      step.def->cpu({in, out, step.attr_words, executable.workspace(), *this, step.def->user_data});
    if (has_failed_ && !failed_at.valid()) failed_at = step.node;
    if (profile_ != nullptr) (*profile_)[index] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (watch_ != nullptr) (*watch_)(step, out);
    ++index;
  }
  if (!has_failed_) return ok();
  const Graph& graph = executable.program().graph;
  return invalid_argument(fmt::format("{} at {}: {}", graph.def(failed_at).name, graph.describe_origin(failed_at), failure_));
}

}  // namespace glim
