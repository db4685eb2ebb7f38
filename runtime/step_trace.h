#pragma once
// A training step as a timeline, in Chrome's trace event format: open it in chrome://tracing or ui.perfetto.dev.
#include <chrono>
#include <string>
#include <vector>

#include "runtime/model.h"

namespace glim {

class StepTrace {
 public:
  // `title` names the process in the viewer. Time counts from here.
  explicit StepTrace(std::string title) : title_(std::move(title)), begin_(std::chrono::steady_clock::now()) {}

  // Runs the program step by step and keeps when each step ran: Model::run, with the same bits.
  Status run(Model& model, ProgramKind kind);

  // One JSON object. Tracks: the programs, as the host saw them; then one per stream with its steps, each called by its op and origin, with
  // the bytes that it reads and writes (operands and outputs once), its FLOPs and its TFLOP/s. Times are microseconds.
  [[nodiscard]] std::string json() const;

 private:
  enum Track : int { kPrograms, kStreams };  // kStreams + Stream
  struct Event {
    std::string name, program;
    int track = kPrograms;
    StepTime time;
    Cost cost;
  };
  std::string title_;
  std::chrono::steady_clock::time_point begin_;
  std::vector<Event> events_;
};

}  // namespace glim
