#define XXH_INLINE_ALL  // the header is all that is needed
#include "runtime/checksum.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <vector>

#include "runtime/mapped_file.h"

namespace glim {

struct Checksum::State {
  XXH3_state_t xxh3;
};

std::string to_hex(const Hash128& hash) { return fmt::format("{:016x}{:016x}", hash[1], hash[0]); }

Checksum::Checksum() : state_(std::make_unique<State>()) { reset(); }
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;
Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> bytes) {
  bytes_ += bytes.size();
  XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

Hash128 Checksum::value() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh3);
  return {hash.low64, hash.high64};
}

Digest Checksum::digest() const { return {bytes_, to_hex(value())}; }

void Checksum::reset() {
  XXH3_128bits_reset(&state_->xxh3);
  bytes_ = 0;
}

Result<Digest> digest_of_file(const std::string& path) {
  // Read, not mapped: a bad sector is then an error here and not a signal. O_NONBLOCK: opening a pipe must not wait for a writer.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (file < 0) {
    if (errno == ELOOP) return invalid_file(fmt::format("{}: this is a link, expected a regular file", path));
    return io_error(path, "cannot open", errno);
  }
  struct stat facts {};
  Checksum checksum;
  int error = ::fstat(file, &facts) == 0 ? 0 : errno;
  const bool is_file = error == 0 && S_ISREG(facts.st_mode);
  if (is_file) {
    std::vector<std::byte> buffer(1 << 18);
    for (;;) {
      const ssize_t count = ::read(file, buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) error = errno;
      if (count <= 0) break;
      checksum.add(std::span(buffer).first(static_cast<size_t>(count)));
    }
  }
  ::close(file);
  if (error != 0) return io_error(path, "cannot read", error);
  if (!is_file) return invalid_file(fmt::format("{}: expected a regular file", path));
  return checksum.digest();
}

}  // namespace glim
