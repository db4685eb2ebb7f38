#include "tests/runtime/system_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstring>

namespace glim {
namespace {

std::atomic<bool> is_armed{false};
std::atomic<int64_t> calls_left{0};
std::atomic<const char*> failed_call{nullptr};
std::atomic<uint64_t> num_ragged{0};
std::atomic<bool> is_ragged{false}, is_held{false};
std::atomic<int64_t> room_left{-1};  // -1: no end
int error_to_give = 0;
std::string only_name, only_path_part;

// Whether this call shall fail; sets errno.
bool fails(const char* name, const char* path = "") {
  if (!is_armed || (!only_name.empty() && only_name != name)) return false;
  if (std::strstr(path, only_path_part.c_str()) == nullptr || calls_left-- != 0) return false;
  if (error_to_give == kKillProcess) ::kill(::getpid(), SIGKILL);
  failed_call = name;
  errno = error_to_give;
  return true;
}

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

FailingCall::FailingCall(int64_t k, int error, const std::string& name, const std::string& path_part) {
  calls_left = k;
  error_to_give = error;
  only_name = name;
  only_path_part = path_part;
  failed_call = nullptr;
  is_armed = true;
}
FailingCall::~FailingCall() { is_armed = false; }
std::string FailingCall::failed() const { return failed_call == nullptr ? "" : failed_call.load(); }

RaggedWrites::RaggedWrites() { is_ragged = true; }
RaggedWrites::~RaggedWrites() { is_ragged = false; }

FullDisk::FullDisk(int64_t bytes_left) { room_left = bytes_left; }
FullDisk::~FullDisk() { room_left = -1; }

HeldWrites::HeldWrites() { is_held = true; }
HeldWrites::~HeldWrites() {
  is_held = false;
  is_held.notify_all();
}

}  // namespace glim

extern "C" {
int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const next = glim::real<int(const char*, mode_t)>("mkdir");
  return glim::fails("mkdir", path) ? -1 : next(path, mode);
}
int open(const char* path, int flags, ...) {
  static auto* const next = glim::real<int(const char*, int, ...)>("open");
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return glim::fails("open", path) ? -1 : next(path, flags, mode);
}
ssize_t read(int file, void* to, size_t bytes) {
  static auto* const next = glim::real<ssize_t(int, void*, size_t)>("read");
  return glim::fails("read") ? -1 : next(file, to, bytes);
}
ssize_t write(int file, const void* from, size_t bytes) {
  static auto* const next = glim::real<ssize_t(int, const void*, size_t)>("write");
  glim::is_held.wait(true);
  if (glim::fails("write")) return -1;
  if (const int64_t room = glim::room_left; room >= 0 && bytes > 0) {
    bytes = std::min(bytes, static_cast<size_t>(room));
    glim::room_left -= static_cast<int64_t>(bytes);
    if (bytes == 0) {
      errno = ENOSPC;
      return -1;
    }
  }
  if (!glim::is_ragged) return next(file, from, bytes);
  if (glim::num_ragged++ % 2 == 0) {
    errno = EINTR;
    return -1;
  }
  return next(file, from, (bytes + 1) / 2);
}
int ftruncate(int file, off_t bytes) noexcept {
  static auto* const next = glim::real<int(int, off_t)>("ftruncate");
  return glim::fails("ftruncate") ? -1 : next(file, bytes);
}
int fsync(int file) {
  static auto* const next = glim::real<int(int)>("fsync");
  return glim::fails("fsync") ? -1 : next(file);
}
int rename(const char* from, const char* to) noexcept {
  static auto* const next = glim::real<int(const char*, const char*)>("rename");
  return glim::fails("rename", from) ? -1 : next(from, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  static auto* const next = glim::real<int(int, const char*, int, const char*, unsigned)>("renameat2");
  return glim::fails("renameat2") ? -1 : next(from_folder, from, to_folder, to, flags);
}
int close(int file) {
  static auto* const next = glim::real<int(int)>("close");
  const int flags = ::fcntl(file, F_GETFL);
  const bool writable = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
  const bool fail = writable && glim::fails("close");
  const int reason = errno, result = next(file);  // as in Linux, the descriptor is gone either way
  if (!fail) return result;
  errno = reason;
  return -1;
}
}
