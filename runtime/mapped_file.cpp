#include "runtime/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace glim {

Error io_error(std::string_view path, std::string_view what, int error_number) {
  return {ErrorCode::kIo, fmt::format("{}: {}: {}", path, what, std::generic_category().message(error_number))};
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return io_error(path, "cannot open", errno);
  struct stat facts {};
  if (::fstat(file, &facts) != 0) {
    const int error = errno;
    ::close(file);
    return io_error(path, "cannot stat", error);
  }
  if (!S_ISREG(facts.st_mode)) {
    ::close(file);
    return invalid_file(fmt::format("{}: {}, expected a regular file", path,
                                    S_ISDIR(facts.st_mode) ? "this is a folder" : "this is a pipe, socket or device"));
  }
  MappedFile mapped(path);
  if (facts.st_size > 0) {  // mmap refuses a length of zero
    void* data = ::mmap(nullptr, static_cast<size_t>(facts.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      ::close(file);
      return io_error(path, "cannot map", error);
    }
    mapped.data_ = static_cast<const std::byte*>(data);
    mapped.size_ = static_cast<size_t>(facts.st_size);
  }
  ::close(file);
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace glim
