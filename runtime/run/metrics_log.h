#pragma once
// metrics.jsonl: one JSON object a line, for programs. A step has "step" and "loss", a validation "step" and "validation_loss", anything
// else "step" and "event". Numbers are written so that they read back to the same bits; one that is not finite is null.
#include <cstdint>
#include <functional>
#include <string>

#include "runtime/run/progress.h"

namespace glim {

[[nodiscard]] std::string step_line(const StepMetrics& metrics, const Progress& progress);
[[nodiscard]] std::string validation_line(int64_t step, const Evaluation& evaluation);
[[nodiscard]] std::string event_line(int64_t step, std::string_view event, std::string_view text);

// What one line says.
struct MetricsLine {
  int64_t step = 0;
  std::string event, text;                              // of an event
  std::vector<std::pair<std::string, double>> numbers;  // all members that are numbers, "step" included
  [[nodiscard]] std::optional<double> find(std::string_view name) const;
};

class MetricsLog {
 public:
  MetricsLog() = default;
  MetricsLog(MetricsLog&& other) noexcept;
  MetricsLog& operator=(MetricsLog&& other) noexcept;
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;
  ~MetricsLog();

  // Keeps the lines of steps up to `last_step` (a crash may have left later ones, or half a line), shows them to `seen`, and appends after
  // them. last_step = 0: a new log.
  static Result<MetricsLog> open(const std::string& path, int64_t last_step, const std::function<void(const MetricsLine&)>& seen);
  // The line is in the file when this returns (not necessarily on the disk). After an error nothing of it stays: the file ends with the
  // last whole line, at the latest when the next one is written. So one may go on with the next line.
  Status append(const std::string& line);

 private:
  Status cut(int64_t end);

  std::string path_;
  int file_ = -1;
  int64_t torn_at_ = -1;  // where a line begins of which only a part could be written, and that could not be taken back
};

}  // namespace glim
