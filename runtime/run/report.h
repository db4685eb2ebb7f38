#pragma once
// run.html: one file for people that shows a run while it goes on and afterwards. It needs no network and no other file.
#include <map>
#include <string>

#include "runtime/run/curve.h"
#include "runtime/run/metrics_log.h"
#include "runtime/run/progress.h"

namespace glim {

class RunReport {
 public:
  RunReport() = default;
  // Writes down what does not change: configuration, graphs, memory plan, data.
  explicit RunReport(Trainer& trainer);

  // A line of metrics.jsonl: the report shows what the log says, also that of the run before a resume.
  void add(const MetricsLine& line);
  void add(const StepMetrics& metrics);
  void add(int64_t step, const Evaluation& evaluation);
  void add_event(int64_t step, std::string_view event, std::string_view text);

  // `status`: "running", "finished", "stopped", ...
  [[nodiscard]] std::string html(std::string_view status, const Progress& progress) const;

 private:
  struct Event {
    int64_t step;
    std::string event, text;
  };
  std::string title_, facts_, configuration_, programs_, memory_;  // the last four as HTML
  int64_t num_steps_ = 0, last_step_ = 0;
  std::map<std::string, Curve, std::less<>> curves_;
  std::map<std::string, double, std::less<>> latest_;
  std::vector<Event> events_;
  int64_t num_events_left_out_ = 0;
};

}  // namespace glim
