#include "runtime/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "runtime/checksum.h"
#include "runtime/mapped_file.h"

namespace glim {
namespace {

std::string_view without_trailing_slash(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path;
}

}  // namespace

std::string parent_folder(std::string_view path) {
  path = without_trailing_slash(path);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(slash == 0 ? "/" : path.substr(0, slash));
}

std::string temporary_sibling(std::string_view path) {
  static std::atomic<uint64_t> counter = 0;
  path = without_trailing_slash(path);
  const size_t name = path.rfind('/') + 1;  // npos + 1 == 0: a bare name
  // The name is shortened so that the temporary one stays under the 255 bytes of a file name.
  return fmt::format("{}.{}.tmp-{}-{}", path.substr(0, name), path.substr(name, 180), ::getpid(), counter++);
}

Result<AtomicFile> AtomicFile::create(const std::string& path, Checksum* checksum) {
  std::string temporary = temporary_sibling(path);
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return io_error(path, "cannot create", errno);
  return AtomicFile(path, std::move(temporary), file, checksum);
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      file_(std::exchange(other.file_, -1)),
      checksum_(other.checksum_) {
  other.temporary_.clear();
}

AtomicFile::~AtomicFile() {
  if (file_ >= 0) ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status write_all(int file, std::span<const std::byte> bytes, const std::string& path, Checksum* checksum) {
  constexpr size_t kMaxBytes = 1 << 20;  // at once, so that the checksum finds them in the cache
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), std::min(bytes.size(), kMaxBytes));
    if (written < 0) {
      if (errno == EINTR) continue;
      return io_error(path, "cannot write", errno);
    }
    if (checksum != nullptr) checksum->add(bytes.first(static_cast<size_t>(written)));
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return ok();
}

Status AtomicFile::write(std::span<const std::byte> bytes) { return write_all(file_, bytes, path_, checksum_); }
Status AtomicFile::write(std::string_view text) { return write(std::as_bytes(std::span(text))); }

Status AtomicFile::commit() {
  if (::fsync(file_) != 0) return io_error(path_, "cannot sync", errno);
  // A close that fails after a good fsync has nothing left to lose, but a network file system may still report here.
  if (::close(std::exchange(file_, -1)) != 0) return io_error(path_, "cannot close", errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return io_error(path_, "cannot rename the finished file to this name", errno);
  temporary_.clear();
  return sync_folder(parent_folder(path_));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

Status replace_folder(const std::string& finished, const std::string& path) {
  if (::renameat2(AT_FDCWD, finished.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return ok();
  // Some file systems cannot exchange. Then there is a moment with the old folder only under its temporary name.
  if (errno != EINVAL && errno != ENOSYS) return io_error(path, "cannot replace the folder", errno);
  const TemporaryFolder old(temporary_sibling(path));
  if (std::rename(path.c_str(), old.path.c_str()) != 0) return io_error(path, "cannot move the old folder away", errno);
  if (std::rename(finished.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    (void)std::rename(old.path.c_str(), path.c_str());
    return io_error(path, "cannot give the finished folder this name", reason);
  }
  return ok();
}

Status write_file_atomically(const std::string& path, std::string_view content, Checksum* checksum) {
  GLIM_ASSIGN(AtomicFile file, AtomicFile::create(path, checksum));
  GLIM_TRY(file.write(content));
  return file.commit();
}

Status sync_folder(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return io_error(path, "cannot open the folder", errno);
  const int error = ::fsync(folder) == 0 ? 0 : errno;
  ::close(folder);
  // Some file systems cannot sync a folder and say EINVAL: there is nothing more to do there.
  if (error != 0 && error != EINVAL) return io_error(path, "cannot sync the folder", error);
  return ok();
}

}  // namespace glim
