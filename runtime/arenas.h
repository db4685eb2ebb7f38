#pragma once
#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "engine/leaf_layout.h"
#include "engine/memory_plan.h"

namespace glim {

// Where each arena of a model lies, in the memory of whatever machine runs it. Owns nothing.
class ArenaBases {
 public:
  [[nodiscard]] std::byte* at(Arena arena, size_t offset) const { return base_[static_cast<size_t>(arena)] + offset; }
  [[nodiscard]] size_t bytes(Arena arena) const { return bytes_[static_cast<size_t>(arena)]; }

 protected:
  std::array<std::byte*, kNumArenas> base_{};
  std::array<size_t, kNumArenas> bytes_{};
};

// The memory of a model on the host: one allocation per arena, made once, shared by all of its programs.
class Arenas : public ArenaBases {
 public:
  Arenas() = default;
  ~Arenas();
  Arenas(Arenas&& other) noexcept : ArenaBases(std::exchange(static_cast<ArenaBases&>(other), {})) {}
  Arenas& operator=(Arenas&& other) noexcept;
  Arenas(const Arenas&) = delete;
  Arenas& operator=(const Arenas&) = delete;

  // Host memory, zeroed, 256-byte aligned. kOutOfMemory names the arena and its size.
  static Result<Arenas> allocate(const std::array<size_t, kNumArenas>& bytes);
};

// Enough of every arena for each of the plans.
[[nodiscard]] std::array<size_t, kNumArenas> largest(std::span<const MemoryPlan* const> plans);

}  // namespace glim
