#pragma once
// The order in which a program's nodes run, and on which stream.
#include <span>
#include <vector>

#include "engine/graph.h"

namespace glim {

enum class Stream : uint8_t { kCompute, kCommunication };

struct ScheduleStep {
  NodeId node;
  Stream stream = Stream::kCompute;
  uint32_t first_wait = 0, num_waits = 0;  // events this step waits for, in Schedule::waits
  uint32_t signal = ~0U;                   // event that fires when the step is done; ~0 = none
};

// Laws: every node but the leaves appears once; operands come before their readers; a dependence between streams is covered by
// an event; the node that produces the next value of a state comes after every reader of that state where the graph allows it
// (where it does not, the memory plan copies at the end).
struct Schedule {
  std::vector<ScheduleStep> steps;
  std::vector<uint32_t> waits;  // event numbers, pooled
  uint32_t num_events = 0;
  std::vector<uint32_t> position;  // by node: index into steps; ~0 for leaves

  [[nodiscard]] std::span<const uint32_t> waits_of(const ScheduleStep& step) const {
    return {waits.data() + step.first_wait, step.num_waits};
  }
};

// Tape order, with two exceptions: states need their writers late, and what serves only states and outputs runs as soon as it can. Nodes
// with Role::kCollective run on the communication stream.
[[nodiscard]] Schedule make_schedule(const Graph& graph);

}  // namespace glim
