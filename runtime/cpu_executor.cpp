#include "runtime/cpu_executor.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>

namespace glim {
namespace {

void copy_view(const TensorView& from, const TensorView& to) {
  if (from.contiguous() && to.contiguous()) {
    std::memmove(to.data, from.data, to.type.bytes());
    return;
  }
  const size_t element = size_of(to.type.dtype), width = static_cast<size_t>(to.type.shape[1]) * element;
  for (int64_t row = 0; row < to.type.shape[0]; ++row) {
    std::memcpy(to.as<std::byte>() + static_cast<size_t>(row * to.row_stride) * element,
                from.as<std::byte>() + static_cast<size_t>(row * from.row_stride) * element, width);
  }
}

}  // namespace

void CpuExecutor::fail(std::string message) {
  const std::lock_guard lock(failure_mutex_);
  if (!has_failed_) failure_ = std::move(message);
  has_failed_ = true;
}

void CpuExecutor::issue(const Executable& executable, const BoundStep& step) {
  const std::span<const TensorView> in = executable.inputs(step), out = executable.outputs(step);
  // One step after the other: there is nothing to do about events.
  if (step.kind == BoundStep::Kind::kCopy)
    copy_view(in[0], out[0]);
  else if (step.kind == BoundStep::Kind::kKernel)
    step.def->cpu({in, out, step.attr_words, executable.workspace(), *this});
}

Status CpuExecutor::end(const Executable& executable, NodeId failed_at) {
  if (!has_failed_) return ok();
  has_failed_ = false;
  const Graph& graph = executable.program().graph;
  return invalid_argument(fmt::format("{} at {}: {}", graph.def(failed_at).name, graph.describe_origin(failed_at), failure_));
}

Status CpuExecutor::run(const Executable& executable) {
  NodeId failed_at;
  size_t index = 0;
  for (const BoundStep& step : executable.steps()) {
    const auto start = profile_ != nullptr ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point{};
    issue(executable, step);
    if (has_failed_ && !failed_at.valid()) failed_at = step.node;
    if (profile_ != nullptr) (*profile_)[index] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ++index;
  }
  return end(executable, failed_at);
}

Status CpuExecutor::run_step(const Executable& executable, size_t index) {
  const BoundStep& step = executable.steps()[index];
  issue(executable, step);
  return end(executable, step.node);
}

Status CpuExecutor::write(const TensorView& to, std::span<const std::byte> from) {
  GLIM_CHECK(from.size() == to.type.bytes(), "the bytes are not those of the tensor");
  if (!from.empty()) copy_view(contiguous_view(const_cast<std::byte*>(from.data()), to.type), to);
  return ok();
}

Status CpuExecutor::read(const TensorView& from, std::span<std::byte> to) {
  GLIM_CHECK(to.size() == from.type.bytes(), "the bytes are not those of the tensor");
  if (!to.empty()) copy_view(from, contiguous_view(to.data(), from.type));
  return ok();
}

}  // namespace glim
