#include "runtime/cpu_executor.h"

#include <fmt/format.h>

#include <chrono>

#include "ops/cpu_regions.h"

namespace glim {
namespace {

using Clock = std::chrono::steady_clock;
double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

void CpuExecutor::copy(const TensorView& from, const TensorView& to) { cpu::copy_region(*this, from, {}, to, {}, to.type.shape); }

void CpuExecutor::fail(std::string message) {
  const std::lock_guard lock(failure_mutex_);
  if (!has_failed_) failure_ = std::move(message);
  has_failed_ = true;
}

void CpuExecutor::issue(const Executable& executable, const BoundStep& step) {
  const std::span<const TensorView> in = executable.inputs(step), out = executable.outputs(step);
  // One step after the other: there is nothing to do about events.
  if (step.kind == BoundStep::Kind::kCopy)
    copy(in[0], out[0]);
  else if (step.kind == BoundStep::Kind::kKernel)
    step.def->cpu({in, out, step.attr_words, executable.workspace(), *this, step.def->user_data});
}

// The failure of a step, if there was one.
Status CpuExecutor::end(const Executable& executable, NodeId failed_at) {
  if (!has_failed_) return ok();
  has_failed_ = false;
  const Graph& graph = executable.program().graph;
  return invalid_argument(fmt::format("{} at {}: {}", graph.def(failed_at).name, graph.describe_origin(failed_at), failure_));
}

Status CpuExecutor::run(const Executable& executable) {
  has_failed_ = false;  // of a run that was cancelled
  NodeId failed_at;
  const auto begin = profile_ != nullptr ? Clock::now() : Clock::time_point{};
  for (size_t index = 0; index < executable.steps().size(); ++index) {
    const BoundStep& step = executable.steps()[index];
    GLIM_TRY(check_not_cancelled(executable));
    const auto start = profile_ != nullptr ? Clock::now() : Clock::time_point{};
    issue(executable, step);
    if (has_failed_ && !failed_at.valid()) failed_at = step.node;
    if (profile_ != nullptr) (*profile_)[index] = {seconds(start - begin), seconds(Clock::now() - start)};
  }
  return end(executable, failed_at);
}

Result<double> CpuExecutor::time(const Executable& executable, int count) {
  const auto start = Clock::now();
  for (int k = 0; k < count; ++k) GLIM_TRY(run(executable));
  return seconds(Clock::now() - start);
}

Status CpuExecutor::run_step(const Executable& executable, size_t index) {
  has_failed_ = false;
  const BoundStep& step = executable.steps()[index];
  issue(executable, step);
  return end(executable, step.node);
}

Status CpuExecutor::write(const TensorView& to, std::span<const std::byte> from) {
  GLIM_CHECK(from.size() == to.type.bytes(), "the bytes are not those of the tensor");
  if (!from.empty()) copy(contiguous_view(const_cast<std::byte*>(from.data()), to.type), to);
  return ok();
}

Status CpuExecutor::clear(const TensorView& view) {
  cpu::clear(*this, view);
  return ok();
}

Status CpuExecutor::read(const TensorView& from, std::span<std::byte> to) {
  GLIM_CHECK(to.size() == from.type.bytes(), "the bytes are not those of the tensor");
  if (!to.empty()) copy(from, contiguous_view(to.data(), from.type));
  return ok();
}

}  // namespace glim
