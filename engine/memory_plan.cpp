#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace glim {
namespace {

struct Block {  // a buffer of computed values
  uint32_t buffer = 0;
  Arena arena = Arena::kActivations;
  size_t bytes = 0, offset = 0;
  Lifetime lifetime;
};

bool alive_together(const Lifetime& a, const Lifetime& b) { return a.begin <= b.end && b.begin <= a.end; }

// Best fit: the smallest gap between the blocks that are alive at the same time; after the last one when none fits.
size_t find_offset(const Block& block, const std::vector<const Block*>& placed, std::vector<std::pair<size_t, size_t>>& busy) {
  busy.clear();
  for (const Block* other : placed) {
    if (alive_together(block.lifetime, other->lifetime)) busy.emplace_back(other->offset, other->offset + other->bytes);
  }
  std::sort(busy.begin(), busy.end());
  size_t end = 0, best = SIZE_MAX, best_gap = SIZE_MAX;
  for (const auto& [from, to] : busy) {
    if (from >= end + block.bytes && from - end < best_gap) {
      best = end;
      best_gap = from - end;
    }
    end = std::max(end, to);
  }
  return best != SIZE_MAX ? best : end;
}

// The packing problem is only as wide as what is alive at one time: sweeping over time finds overlaps in n log n.
void check_no_overlap(const std::vector<Block>& blocks) {
  std::vector<const Block*> by_begin;
  for (const Block& block : blocks) by_begin.push_back(&block);
  std::sort(by_begin.begin(), by_begin.end(), [](const Block* a, const Block* b) { return a->lifetime.begin < b->lifetime.begin; });
  std::vector<const Block*> alive;
  for (const Block* block : by_begin) {
    std::erase_if(alive, [&](const Block* other) { return other->lifetime.end < block->lifetime.begin; });
    for (const Block* other : alive) {
      const bool apart =
          other->arena != block->arena || other->offset + other->bytes <= block->offset || block->offset + block->bytes <= other->offset;
      GLIM_CHECK(apart, fmt::format("live buffers {} and {} overlap in the arena", other->buffer, block->buffer));
    }
    alive.push_back(block);
  }
}

size_t peak_of(const std::vector<Block>& blocks) {
  std::vector<std::pair<int64_t, int64_t>> changes;  // (position, bytes); what ends at p frees after p
  for (const Block& block : blocks) {
    changes.emplace_back(2 * block.lifetime.begin, static_cast<int64_t>(block.bytes));
    changes.emplace_back(2 * block.lifetime.end + 1, -static_cast<int64_t>(block.bytes));
  }
  std::sort(changes.begin(), changes.end());
  int64_t now = 0, peak = 0;
  for (const auto& [position, bytes] : changes) peak = std::max(peak, now += bytes);
  return static_cast<size_t>(peak);
}

}  // namespace

MemoryPlan plan_memory(const Graph& graph, const Schedule& schedule, const LeafLayout& layout) {
  const Placements placements = place_values(graph, schedule, &layout);
  MemoryPlan plan;
  plan.node_runs = placements.node_runs;
  std::vector<Block> blocks;
  for (uint32_t b = 0; b < placements.buffers.size(); ++b) {
    const Buffer& buffer = placements.buffers[b];
    if (buffer.leaves.empty() && buffer.rows > 0) blocks.push_back({b, Arena::kActivations, align_up(buffer.bytes()), 0, buffer.lifetime});
  }
  for (uint32_t v = 0; v < graph.num_values(); ++v) {
    if (graph.def(graph.producer({v})).role != Role::kCollective) continue;
    for (Block& block : blocks) {
      if (block.buffer == placements.values[v].buffer) block.arena = Arena::kCommunication;
    }
  }
  std::vector<uint32_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return blocks[a].bytes > blocks[b].bytes; });
  std::array<std::vector<const Block*>, kNumArenas> placed;
  std::vector<std::pair<size_t, size_t>> busy;
  for (const uint32_t k : order) {
    Block& block = blocks[k];
    std::vector<const Block*>& others = placed[static_cast<size_t>(block.arena)];
    block.offset = find_offset(block, others, busy);
    others.push_back(&block);
    size_t& end = plan.arena_bytes[static_cast<size_t>(block.arena)];
    end = std::max(end, block.offset + block.bytes);
  }
  check_no_overlap(blocks);
  plan.live_bytes_peak = peak_of(blocks);

  std::vector<std::pair<Arena, size_t>> buffer_at(placements.buffers.size());
  for (const Block& block : blocks) buffer_at[block.buffer] = {block.arena, block.offset};
  for (uint32_t b = 0; b < placements.buffers.size(); ++b) {
    if (placements.buffers[b].leaves.empty()) continue;
    const LeafSlot* slot = layout.find(graph.leaf(placements.buffers[b].leaves.front()).name);
    buffer_at[b] = {slot->arena, slot->offset};
  }
  for (const Arena arena : {Arena::kInputs, Arena::kParameters, Arena::kGradients, Arena::kOptimizer}) {
    plan.arena_bytes[static_cast<size_t>(arena)] = layout.bytes(arena);
  }
  plan.slots.resize(graph.num_values());
  for (uint32_t v = 0; v < graph.num_values(); ++v) {
    const uint32_t b = placements.values[v].buffer;
    const bool is_matrix = graph.type({v}).shape.rank == 2;
    plan.slots[v] = {buffer_at[b].first, buffer_at[b].second + placements.offset_bytes({v}),
                     is_matrix ? placements.buffers[b].columns : graph.type({v}).shape.last()};
  }

  size_t workspace = 0;
  for (const ScheduleStep& step : schedule.steps) workspace = std::max(workspace, graph.cost(step.node).workspace_bytes);
  for (const Placements::Before& before : placements.copies_before) {
    const ValueId from = graph.inputs(before.node)[before.operand], to = graph.output(before.node, before.output);
    plan.copies_before.push_back({before.node, {plan.slots[from.index], plan.slots[to.index], graph.type(to)}});
  }
  // Next values that lie in state themselves may be overwritten by an earlier copy: they go through the workspace.
  size_t staged = 0;
  std::vector<PlannedCopy> second;
  for (const StateUpdate& update : placements.copies) {
    const PlannedCopy copy{plan.slots[update.next.index], plan.slots[update.state.index], graph.type(update.next)};
    if (copy.from.arena == Arena::kActivations || copy.from.arena == Arena::kCommunication) {
      second.push_back(copy);
      continue;
    }
    const Slot stage{Arena::kWorkspace, staged, copy.type.shape.last()};
    plan.copies_after.push_back({copy.from, stage, copy.type});
    second.push_back({stage, copy.to, copy.type});
    staged += align_up(copy.type.bytes());
  }
  plan.copies_after.insert(plan.copies_after.end(), second.begin(), second.end());
  plan.arena_bytes[static_cast<size_t>(Arena::kWorkspace)] = align_up(std::max(workspace, staged));
  return plan;
}

}  // namespace glim
