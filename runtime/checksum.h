#pragma once
// XXH3-128 of bytes: finds files that were damaged. It is no defence against somebody who means harm.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/error.h"

namespace glim {

using Hash128 = std::array<uint64_t, 2>;                // low, high
[[nodiscard]] std::string to_hex(const Hash128& hash);  // 32 lower-case hexadecimal digits, as `xxhsum -H2` prints them

struct Digest {
  uint64_t bytes = 0;
  std::string xxh3;  // to_hex
  friend bool operator==(const Digest&, const Digest&) = default;
};

class Checksum {
 public:
  Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;
  ~Checksum();

  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  void add(const Hash128& hash) { add(std::as_bytes(std::span(hash))); }
  // Of all that was added since the beginning or the last reset.
  [[nodiscard]] Hash128 value() const;
  [[nodiscard]] Digest digest() const;
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
  uint64_t bytes_ = 0;
};

// Reads the whole file. Errors: kIo; kInvalidFile when it is no regular file. A link is not followed.
[[nodiscard]] Result<Digest> digest_of_file(const std::string& path);

}  // namespace glim
