#include "runtime/arenas.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>

namespace glim {

Arenas::~Arenas() {
  for (size_t a = 0; a < kNumArenas; ++a) {
    if (base_[a] != nullptr) munmap(base_[a], bytes_[a]);
  }
}

Arenas& Arenas::operator=(Arenas&& other) noexcept {
  std::swap(static_cast<ArenaBases&>(*this), static_cast<ArenaBases&>(other));
  return *this;
}

Result<Arenas> Arenas::allocate(const std::array<size_t, kNumArenas>& bytes) {
  Arenas arenas;
  for (size_t a = 0; a < kNumArenas; ++a) {
    if (bytes[a] == 0) continue;
    void* base = mmap(nullptr, bytes[a], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
      return Error{ErrorCode::kOutOfMemory, fmt::format("the {} arena needs {} bytes, which this machine does not give",
                                                        to_string(static_cast<Arena>(a)), bytes[a])};
    }
    arenas.base_[a] = static_cast<std::byte*>(base);
    arenas.bytes_[a] = bytes[a];
  }
  return arenas;
}

std::array<size_t, kNumArenas> largest(std::span<const MemoryPlan* const> plans) {
  std::array<size_t, kNumArenas> bytes{};
  for (const MemoryPlan* plan : plans) {
    for (size_t a = 0; a < kNumArenas; ++a) bytes[a] = std::max(bytes[a], plan->arena_bytes[a]);
  }
  return bytes;
}

}  // namespace glim
