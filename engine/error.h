#pragma once
// Three kinds of failure that never mix: user errors are Result<T>; bugs are GLIM_CHECK, which calls a handler and aborts;
// device errors are Results returned at the end of a step.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace glim {

struct SourceLocation {
  std::string file;
  int line = 0, column = 0;  // 1-based; 0 = unknown
};

enum class ErrorCode : uint8_t {
  kInvalidArgument,  // configuration or arguments: exit code 2
  kInvalidFile,      // an input file that does not hold what it should: 3
  kOutOfMemory,      // 4
  kIo,               // 5
  kNumeric,          // 6
  kCommunication,    // 7
  kDevice,           // CUDA, cuBLAS, ...: 1
  kCancelled,        // preempted: 75
};

struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string message;
  SourceLocation where{};
  // "file:line:column: message", with the parts of the location that are known.
  [[nodiscard]] std::string to_string() const;
};

// The process exit code that belongs to an error (DESIGN: 0 ok, 2 configuration, 3 input file, 4 memory, 5 I/O, ...).
[[nodiscard]] int exit_code(ErrorCode code);

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)
  explicit operator bool() const { return state_.index() == 0; }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  [[nodiscard]] const Error& error() const { return std::get<1>(state_); }
  [[nodiscard]] Error& error() { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

struct Unit {};
using Status = Result<Unit>;
inline Status ok() { return Unit{}; }

inline Error invalid_argument(std::string message, SourceLocation where = {}) {
  return {ErrorCode::kInvalidArgument, std::move(message), std::move(where)};
}
inline Error invalid_file(std::string message, SourceLocation where = {}) {
  return {ErrorCode::kInvalidFile, std::move(message), std::move(where)};
}

// Bugs. The handler (a host may set one) sees the report before the process aborts.
using BugHandler = void (*)(std::string_view report);
void set_bug_handler(BugHandler handler);
[[noreturn]] void report_bug(const char* file, int line, const char* condition, std::string_view what);

}  // namespace glim

#define GLIM_CHECK(condition, what) ((condition) ? void(0) : ::glim::report_bug(__FILE__, __LINE__, #condition, (what)))

#define GLIM_CONCAT_INNER(a, b) a##b
#define GLIM_CONCAT(a, b) GLIM_CONCAT_INNER(a, b)
// GLIM_TRY(status_expression);  GLIM_ASSIGN(auto x, result_expression);  both return the error to the caller.
#define GLIM_TRY(...)                                                                          \
  do {                                                                                         \
    if (auto glim_status = (__VA_ARGS__); !glim_status) return std::move(glim_status.error()); \
  } while (false)
#define GLIM_ASSIGN(declaration, ...) GLIM_ASSIGN_INNER(GLIM_CONCAT(glim_result_, __LINE__), declaration, __VA_ARGS__)
#define GLIM_ASSIGN_INNER(name, declaration, ...) \
  auto name = (__VA_ARGS__);                      \
  if (!(name)) return std::move((name).error());  \
  declaration = *std::move(name)
