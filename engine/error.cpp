#include "engine/error.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace glim {

std::string Error::to_string() const {
  std::string text;
  if (!where.file.empty()) text += where.file + ":";
  if (where.line > 0) text += fmt::format("{}:", where.line);
  if (where.line > 0 && where.column > 0) text += fmt::format("{}:", where.column);
  text += text.empty() ? message : " " + message;
  std::string shown;  // what comes from files must not steer a terminal
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n') || byte == 0x7f)
      shown += fmt::format("\\x{:02x}", byte);
    else
      shown += c;
  }
  return shown;
}

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return 2;
    case ErrorCode::kInvalidFile: return 3;
    case ErrorCode::kOutOfMemory: return 4;
    case ErrorCode::kIo: return 5;
    case ErrorCode::kNumeric: return 6;
    case ErrorCode::kCommunication: return 7;
    case ErrorCode::kDevice: return 1;
    case ErrorCode::kCancelled: return 75;
  }
  return 1;
}

namespace {
BugHandler bug_handler = nullptr;
}

void set_bug_handler(BugHandler handler) { bug_handler = handler; }

void report_bug(const char* file, int line, const char* condition, std::string_view what) {
  const std::string report = fmt::format("{}:{}: CHECK({}) failed: {}", file, line, condition, what);
  if (bug_handler != nullptr) {
    bug_handler(report);
  } else {
    std::fprintf(stderr, "%s\n", report.c_str());
  }
  std::abort();
}

}  // namespace glim
