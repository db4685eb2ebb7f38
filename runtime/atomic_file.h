#pragma once
// Writing so that a crash or a full disk loses nothing: bytes go to a temporary sibling, which is synced and then takes the
// final name. Until commit() has returned, whatever had that name is untouched.
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "engine/error.h"

namespace glim {

class Checksum;

class AtomicFile {
 public:
  // Errors of all members: kIo with the path and the system's reason. All that is written is also added to `checksum`.
  [[nodiscard]] static Result<AtomicFile> create(const std::string& path, Checksum* checksum = nullptr);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();  // removes the temporary file when it was not committed

  [[nodiscard]] Status write(std::span<const std::byte> bytes);
  [[nodiscard]] Status write(std::string_view text);
  // fsync, rename, fsync of the directory. An fsync that failed is never retried: the kernel may have dropped the pages.
  [[nodiscard]] Status commit();

 private:
  AtomicFile(std::string path, std::string temporary, int file, Checksum* checksum)
      : path_(std::move(path)), temporary_(std::move(temporary)), file_(file), checksum_(checksum) {}

  std::string path_, temporary_;
  int file_ = -1;
  Checksum* checksum_ = nullptr;
};

// Removes what is at its path when it goes: an unfinished folder, or one that was replaced.
struct TemporaryFolder {
  std::string path;
  explicit TemporaryFolder(std::string at) : path(std::move(at)) {}
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();
};

[[nodiscard]] Status write_file_atomically(const std::string& path, std::string_view content, Checksum* checksum = nullptr);
// Gives the folder `finished` the name of the folder `path`, its sibling, in one step; the old one is then at `finished`, or gone.
[[nodiscard]] Status replace_folder(const std::string& finished, const std::string& path);
// All of the bytes to an open file, however many calls that takes; `checksum` gets what was written. kIo with `path`.
[[nodiscard]] Status write_all(int file, std::span<const std::byte> bytes, const std::string& path, Checksum* checksum = nullptr);
[[nodiscard]] Status sync_folder(const std::string& path);
// The folder that holds `path`: "." for a bare name; a trailing '/' of `path` does not count.
[[nodiscard]] std::string parent_folder(std::string_view path);
// A name beside `path` that nothing else uses: hidden, with the process id and a counter.
[[nodiscard]] std::string temporary_sibling(std::string_view path);

}  // namespace glim
