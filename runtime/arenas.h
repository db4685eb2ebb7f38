#pragma once
#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "engine/leaf_layout.h"
#include "engine/memory_plan.h"

namespace glim {

// The memory of a model: one allocation per arena, made once, shared by all of its programs.
class Arenas {
 public:
  Arenas() = default;
  ~Arenas();
  Arenas(Arenas&& other) noexcept : base_(std::exchange(other.base_, {})), bytes_(std::exchange(other.bytes_, {})) {}
  Arenas& operator=(Arenas&& other) noexcept;
  Arenas(const Arenas&) = delete;
  Arenas& operator=(const Arenas&) = delete;

  // Host memory, zeroed, 256-byte aligned. kOutOfMemory names the arena and its size.
  static Result<Arenas> allocate(const std::array<size_t, kNumArenas>& bytes);
  [[nodiscard]] std::byte* at(Arena arena, size_t offset) const { return base_[static_cast<size_t>(arena)] + offset; }
  [[nodiscard]] size_t bytes(Arena arena) const { return bytes_[static_cast<size_t>(arena)]; }

 private:
  std::array<std::byte*, kNumArenas> base_{};
  std::array<size_t, kNumArenas> bytes_{};
};

// Enough of every arena for each of the plans.
[[nodiscard]] std::array<size_t, kNumArenas> largest(std::span<const MemoryPlan* const> plans);

}  // namespace glim
