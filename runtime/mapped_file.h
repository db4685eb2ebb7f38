#pragma once
// A regular file mapped read-only. A file that another process truncates while it is mapped raises SIGBUS on the next
// read of the lost part: that is how the operating system reports it, and every mapping reader shares it.
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "engine/error.h"

namespace glim {

class MappedFile {
 public:
  // Errors: kIo when the file cannot be opened or mapped, kInvalidFile when it is no regular file. Both name the path.
  [[nodiscard]] static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  [[nodiscard]] std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  explicit MappedFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  const std::byte* data_ = nullptr;  // page-aligned; null when the file is empty
  size_t size_ = 0;
};

// kIo with the path, what was tried and the text of `error_number`.
[[nodiscard]] Error io_error(std::string_view path, std::string_view what, int error_number);

}  // namespace glim
