#define XXH_STATIC_LINKING_ONLY  // XXH3_state_t as a complete type
#include "runtime/data/content_hash.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace glim {

struct ContentHash::State {
  XXH3_state_t xxh3;
};

ContentHash::ContentHash() : state_(std::make_unique<State>()) { reset(); }
ContentHash::~ContentHash() = default;

void ContentHash::reset() { XXH3_128bits_reset(&state_->xxh3); }
void ContentHash::add(std::span<const std::byte> bytes) { XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size()); }
Digest ContentHash::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh3);
  return {hash.low64, hash.high64};
}

std::string to_hex(const Digest& digest) { return fmt::format("{:016x}{:016x}", digest[1], digest[0]); }

}  // namespace glim
