#include "runtime/run/metrics_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/atomic_file.h"
#include "runtime/mapped_file.h"

namespace glim {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& line) { return line.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::optional<MetricsLine> read_line(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_unsigned()) return std::nullopt;
  MetricsLine line;
  line.step = step->get<int64_t>();
  for (const auto& [key, value] : json.items()) {
    if (value.is_number()) line.numbers.emplace_back(key, value.get<double>());
    if (value.is_string() && key == "event") line.event = value.get<std::string>();
    if (value.is_string() && key == "text") line.text = value.get<std::string>();
  }
  return line;
}

}  // namespace

std::string step_line(const StepMetrics& m, const Progress& progress) {
  Json line{{"step", m.step},
            {"loss", m.loss},
            {"token_accuracy", m.token_accuracy},
            {"num_correct", m.num_correct},
            {"num_valid", m.num_valid},
            {"num_tokens", m.num_tokens},
            {"learning_rate", m.learning_rate},
            {"gradient_norm", m.gradient_norm},
            {"skipped", m.skipped},
            {"tokens_per_second", static_cast<double>(m.num_tokens) / m.seconds},
            {"gflop_per_second", m.flops / m.seconds / 1e9}};
  if (progress.mfu) line["mfu"] = *progress.mfu;
  line["resident_bytes"] = progress.resident_bytes;
  line["seconds"] = progress.elapsed_seconds;
  return dump(line);
}

std::string validation_line(int64_t step, const Evaluation& e) {
  return dump({{"step", step}, {"validation_loss", e.loss}, {"validation_token_accuracy", e.token_accuracy}, {"num_valid", e.num_valid}});
}

std::string event_line(int64_t step, std::string_view event, std::string_view text) {
  return dump({{"step", step}, {"event", event}, {"text", text}});
}

std::optional<double> MetricsLine::find(std::string_view name) const {
  for (const auto& [key, value] : numbers) {
    if (key == name) return value;
  }
  return std::nullopt;
}

MetricsLog::MetricsLog(MetricsLog&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)), torn_at_(other.torn_at_) {}

MetricsLog& MetricsLog::operator=(MetricsLog&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(file_, other.file_);
  std::swap(torn_at_, other.torn_at_);
  return *this;
}

MetricsLog::~MetricsLog() {
  if (file_ >= 0) ::close(file_);
}

Result<MetricsLog> MetricsLog::open(const std::string& path, int64_t last_step, const std::function<void(const MetricsLine&)>& seen) {
  std::string kept;
  if (last_step > 0) {
    std::ifstream old(path, std::ios::binary);
    for (std::string text; std::getline(old, text);) {
      const std::optional<MetricsLine> line = read_line(text);
      if (!line || line->step > last_step) continue;
      kept += text + "\n";
      seen(*line);
    }
  }
  GLIM_TRY(write_file_atomically(path, kept));
  MetricsLog log;
  log.path_ = path;
  log.file_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (log.file_ < 0) return io_error(path, "cannot open", errno);
  return log;
}

Status MetricsLog::cut(int64_t end) {
  torn_at_ = end;
  if (::ftruncate(file_, end) != 0) return io_error(path_, "cannot take back half a line", errno);
  torn_at_ = -1;
  return ok();
}

Status MetricsLog::append(const std::string& line) {
  if (torn_at_ >= 0) GLIM_TRY(cut(torn_at_));
  const int64_t end = ::lseek(file_, 0, SEEK_END);
  if (end < 0) return io_error(path_, "cannot find the end", errno);
  const std::string text = line + "\n";
  Status written = write_all(file_, std::as_bytes(std::span(text)), path_);
  if (!written) (void)cut(end);  // if not now, then by the next call
  return written;
}

}  // namespace glim
