#include "runtime/executable.h"

#include <fmt/format.h>

#include <algorithm>

namespace glim {

TensorView Executable::view(ValueId v) const {
  const Slot& slot = program_->plan.slots[v.index];
  return {arenas_.at(slot.arena, slot.offset), program_->graph.type(v), slot.row_stride};
}

std::string Executable::describe(const BoundStep& step) const {
  if (!step.node.valid()) return "copying a state";
  const std::string_view op = program_->graph.def(step.node).name;
  const char* const what = step.kind == BoundStep::Kind::kCopy ? "copy for " : step.kind == BoundStep::Kind::kEvents ? "events of " : "";
  const std::string at = program_->graph.describe_origin(step.node);
  return fmt::format("{}{}{}{}", what, op, at.empty() ? "" : " at ", at);
}

Executable::Executable(const Program& program, const ArenaBases& arenas) : program_(&program), arenas_(arenas) {
  const Graph& graph = program.graph;
  const MemoryPlan& plan = program.plan;
  workspace_ = {arenas.at(Arena::kWorkspace, 0), arenas.bytes(Arena::kWorkspace)};
  const auto add_copy = [&](NodeId n, const PlannedCopy& copy) {
    steps_.push_back(
        {.kind = BoundStep::Kind::kCopy, .node = n, .first_view = static_cast<uint32_t>(views_.size()), .num_inputs = 1, .num_outputs = 1});
    views_.push_back({arenas.at(copy.from.arena, copy.from.offset), copy.type, copy.from.row_stride});
    views_.push_back({arenas.at(copy.to.arena, copy.to.offset), copy.type, copy.to.row_stride});
  };
  for (const ScheduleStep& step : program.schedule.steps) {
    const NodeId n = step.node;
    const size_t first = steps_.size();
    for (const MemoryPlan::Before& before : plan.copies_before) {
      if (before.node == n) add_copy(n, before.copy);
    }
    if (plan.node_runs[n.index]) {
      const Node node = graph.node(n);
      steps_.push_back({.node = n,
                        .def = &graph.def(n),
                        .first_view = static_cast<uint32_t>(views_.size()),
                        .num_inputs = node.num_inputs,
                        .num_outputs = node.num_outputs,
                        .attr_words = graph.attr_words(n)});
      for (const ValueId v : graph.inputs(n)) views_.push_back(v.valid() ? view(v) : TensorView{});
      for (uint32_t k = 0; k < node.num_outputs; ++k) views_.push_back(view(graph.output(n, k)));
    } else if (steps_.size() == first && (step.num_waits > 0 || step.signal != ~0U)) {
      steps_.push_back({.kind = BoundStep::Kind::kEvents, .node = n});
    }
    if (steps_.size() == first) continue;
    for (size_t k = first; k < steps_.size(); ++k) steps_[k].stream = step.stream;
    steps_[first].waits = program.schedule.waits_of(step);
    steps_.back().signal = step.signal;
  }
  for (const PlannedCopy& copy : plan.copies_after) add_copy({}, copy);
}

Status Executor::check_not_cancelled(const Executable& executable) const {
  if (cancellation_ == nullptr || !cancellation_->load(std::memory_order_relaxed)) return ok();
  return Error{ErrorCode::kCancelled, fmt::format("the program '{}' was cancelled", executable.program().name)};
}

}  // namespace glim
