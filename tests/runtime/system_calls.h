#pragma once
// Faults of the operating system, made in this test program by functions that stand before those of the C library.
#include <cstdint>
#include <string>

namespace glim {

inline constexpr int kKillProcess = -1;  // in place of an error: kill -9 instead of the call

// Counts mkdir, open, read, write, fsync, ftruncate, rename, renameat2 and close (of files open for writing: others have nothing to lose),
// by any thread. One at a time.
class FailingCall {
 public:
  // Call number k, from 0, does nothing and fails with `error`; "write" counts calls of that name only, "" all. With `path_part`, only
  // mkdir, open and rename of a path that it is a part of.
  FailingCall(int64_t k, int error, const std::string& name = "", const std::string& path_part = "");
  FailingCall(const FailingCall&) = delete;
  FailingCall& operator=(const FailingCall&) = delete;
  ~FailingCall();
  [[nodiscard]] std::string failed() const;  // name of the call that failed; "": there were not so many calls
};

// While it lives, every other write is interrupted (EINTR), and the rest write half of what they should.
struct RaggedWrites {
  RaggedWrites();
  ~RaggedWrites();
};

// While it lives, that many more bytes can be written, by all together; then write() fails with ENOSPC.
struct FullDisk {
  explicit FullDisk(int64_t bytes_left);
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  ~FullDisk();
};

// While it lives, write() waits.
struct HeldWrites {
  HeldWrites();
  ~HeldWrites();
};

}  // namespace glim
