#pragma once
// Where the leaves of all programs of a model lie: parameters, gradients, optimizer state and inputs are shared by them.
#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "engine/graph.h"

namespace glim {

enum class Arena : uint8_t { kInputs, kParameters, kGradients, kOptimizer, kActivations, kCommunication, kWorkspace };
inline constexpr size_t kNumArenas = 7;
inline constexpr size_t kAlignment = 256;  // bytes: of buffers, and of groups of leaves
[[nodiscard]] std::string_view to_string(Arena arena);
[[nodiscard]] Arena arena_of(LeafKind kind);
[[nodiscard]] constexpr size_t align_up(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct LeafSlot {
  Arena arena = Arena::kInputs;
  size_t offset = 0;
  TensorType type;
};

// Leaves keep the order in which the programs declare them (stack instance by stack instance). Leaves that some program reads
// as one tensor (the weights of packed linears, and the gradients that come out packed) form a group: its members lie side by
// side without padding, so that packing copies nothing. Groups are aligned to 256 bytes.
class LeafLayout {
 public:
  [[nodiscard]] const LeafSlot* find(std::string_view name) const;
  [[nodiscard]] size_t bytes(Arena arena) const { return bytes_[static_cast<size_t>(arena)]; }
  [[nodiscard]] const std::map<std::string, LeafSlot, std::less<>>& slots() const { return slots_; }

 private:
  friend LeafLayout make_leaf_layout(std::span<const Graph* const> programs);
  std::map<std::string, LeafSlot, std::less<>> slots_;
  std::array<size_t, kNumArenas> bytes_{};
};
// A leaf that two programs declare with different types or kinds is a bug.
[[nodiscard]] LeafLayout make_leaf_layout(std::span<const Graph* const> programs);

}  // namespace glim
