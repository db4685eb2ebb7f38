#pragma once
// Faults of the operating system, made in this test program by functions that stand before those of the C library.
#include <cstdint>
#include <string>

namespace glim {

inline constexpr int kKillProcess = -1;  // in place of an error: kill -9 instead of the call

// Counts mkdir, open, read, write, fsync, rename, renameat2 and close (of files open for writing: others have nothing to lose), by any
// thread. One at a time.
class FailingCall {
 public:
  // Call number k, from 0, does nothing and fails with `error`; "write" counts calls of that name only, "" all.
  FailingCall(int64_t k, int error, const std::string& name = "");
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

// While it lives, write() waits.
struct HeldWrites {
  HeldWrites();
  ~HeldWrites();
};

}  // namespace glim
