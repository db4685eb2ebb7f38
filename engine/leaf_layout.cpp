#include "engine/leaf_layout.h"

#include <fmt/format.h>

#include <vector>

#include "engine/analysis/placement.h"

namespace glim {

std::string_view to_string(Arena arena) {
  constexpr std::string_view kNames[kNumArenas] = {"inputs",      "parameters",    "gradients", "optimizer",
                                                   "activations", "communication", "workspace"};
  return kNames[static_cast<size_t>(arena)];
}

Arena arena_of(LeafKind kind) {
  switch (kind) {
    case LeafKind::kInput:
    case LeafKind::kSeed: return Arena::kInputs;
    case LeafKind::kParameter: return Arena::kParameters;
    case LeafKind::kGradient: return Arena::kGradients;
    case LeafKind::kOptimizer: return Arena::kOptimizer;
  }
  return Arena::kInputs;
}

const LeafSlot* LeafLayout::find(std::string_view name) const {
  const auto found = slots_.find(name);
  return found == slots_.end() ? nullptr : &found->second;
}

LeafLayout make_leaf_layout(std::span<const Graph* const> programs) {
  // Groups that any program wants, first come first served.
  std::map<std::string, std::vector<std::string>> group_of;  // first member -> members
  std::map<std::string, std::string> member_of;              // member -> first member
  for (const Graph* graph : programs) {
    const Placements placements = place_values(*graph, make_schedule(*graph), nullptr);
    for (const Buffer& buffer : placements.buffers) {
      if (buffer.leaves.size() < 2) continue;
      std::vector<std::string> names;
      bool is_free = true;
      for (const ValueId v : buffer.leaves) {
        names.push_back(graph->leaf(v).name);
        is_free = is_free && !member_of.contains(names.back());
      }
      if (!is_free) continue;
      for (const std::string& name : names) member_of[name] = names.front();
      group_of[names.front()] = names;
    }
  }
  LeafLayout layout;
  std::map<std::string, std::pair<LeafKind, TensorType>> known;
  for (const Graph* graph : programs) {
    for (const Leaf& leaf : graph->leaves()) {
      const auto [entry, is_new] = known.try_emplace(leaf.name, leaf.kind, graph->type(leaf.value));
      GLIM_CHECK(is_new || (entry->second.first == leaf.kind && entry->second.second == graph->type(leaf.value)),
                 fmt::format("programs disagree about the leaf '{}'", leaf.name));
    }
  }
  const auto append = [&](const std::string& name) {
    const auto& [kind, type] = known.at(name);
    const Arena arena = arena_of(kind);
    size_t& end = layout.bytes_[static_cast<size_t>(arena)];
    layout.slots_[name] = {arena, end, type};
    end += type.bytes();
  };
  for (const Graph* graph : programs) {
    for (const Leaf& leaf : graph->leaves()) {
      if (layout.slots_.contains(leaf.name)) continue;
      size_t& end = layout.bytes_[static_cast<size_t>(arena_of(leaf.kind))];
      const auto member = member_of.find(leaf.name);
      if (member == member_of.end())
        append(leaf.name);
      else
        for (const std::string& name : group_of.at(member->second)) append(name);
      end = align_up(end);
    }
  }
  return layout;
}

}  // namespace glim
