#pragma once
// Every value's place in an arena, computed before anything runs and without a GPU.
#include <array>
#include <vector>

#include "engine/analysis/placement.h"
#include "engine/leaf_layout.h"

namespace glim {

struct Slot {
  Arena arena = Arena::kActivations;
  size_t offset = 0;       // bytes from the start of the arena
  int64_t row_stride = 0;  // elements, for rank 2
};

// A move of bytes that no node stands for.
struct PlannedCopy {
  Slot from, to;
  TensorType type;
};

struct MemoryPlan {
  std::vector<Slot> slots;  // by value
  std::array<size_t, kNumArenas> arena_bytes{};
  std::vector<bool> node_runs;  // by node: false for views and for assemblies that were built in place
  struct Before {
    NodeId node;
    PlannedCopy copy;
  };
  std::vector<Before> copies_before;      // by schedule position: an accumulator that could not be updated where it lies
  std::vector<PlannedCopy> copies_after;  // states whose next value could not be put in place, in this order
  size_t live_bytes_peak = 0;             // most bytes of activations live at once: what a perfect packing would need

  [[nodiscard]] size_t bytes(Arena arena) const { return arena_bytes[static_cast<size_t>(arena)]; }
};

// Leaves go where `layout` says; everything else into the activations arena (communication buffers into their own), largest
// first, each into the smallest gap that fits. Checks that no two live values share bytes except declared aliases.
[[nodiscard]] MemoryPlan plan_memory(const Graph& graph, const Schedule& schedule, const LeafLayout& layout);

}  // namespace glim
