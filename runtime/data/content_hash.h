#pragma once
// XXH3 with 128 bits: for noticing that data is not what it was. It is no defence against somebody who forges data.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace glim {

using Digest = std::array<uint64_t, 2>;  // low, high

class ContentHash {
 public:
  ContentHash();
  ContentHash(ContentHash&&) = default;
  ContentHash& operator=(ContentHash&&) = default;
  ~ContentHash();

  void reset();
  void add(std::span<const std::byte> bytes);
  void add(const Digest& digest) { add(std::as_bytes(std::span(digest))); }
  [[nodiscard]] Digest digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] std::string to_hex(const Digest& digest);  // 32 digits

}  // namespace glim
