#pragma once
// A run: steps until the last one or until it is told to stop, validation, checkpoints, metrics.jsonl and run.html on the way, and going on
// where an earlier process stopped. Says what happens to an observer; prints nothing, and installs no signal handler.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/run/metrics_log.h"
#include "runtime/run/progress.h"
#include "runtime/run/report.h"
#include "runtime/trainer.h"

namespace glim {

// What a run tells as it goes. Called from the thread that runs.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void on_step(const StepMetrics& metrics, const Progress& progress) = 0;
  virtual void on_validation(int64_t step, const Evaluation& evaluation) = 0;
  // "resumed", "checkpoint", "warning", "skipped", "stopped", ...
  virtual void on_event(int64_t step, std::string_view event, const std::string& text) = 0;
};

enum class RunEnd : uint8_t { kFinished, kOutOfTime, kStopped };

class TrainingRun {
 public:
  // `resume`: "" = a new run, refused where the output folder holds one; "auto" = the newest checkpoint of the output folder that
  // verifies, a new run if it has none; otherwise a checkpoint's folder.
  // Errors: those of prepare_training; kInvalidArgument when the checkpoint is of another run (what differs is named).
  static Result<TrainingRun> open(const TrainConfig& config, const std::string& resume, RunObserver& observer);

  // Goes on until the configured steps or seconds are over, or `stop` is set (then: after the step under way; a validation is given up
  // at once, nothing of it is recorded, and a resumed run does it again). A checkpoint is written at the end of each of these, and
  // model/ when the last step or the time is over. Without an output folder nothing is written.
  // A checkpoint or log that cannot be written is an event, and training goes on; only the last checkpoint's error is returned.
  Result<RunEnd> run(const std::atomic<bool>& stop);

  // One step, the third of this process or the last one when there are fewer, goes to this file as a timeline (StepTrace). That it cannot
  // be written is an event.
  void set_trace(const std::string& file) { trace_file_ = file; }

  [[nodiscard]] Trainer& trainer() { return *trainer_; }

 private:
  TrainingRun() = default;
  Status resume_from(const std::string& resume);
  Status start_logs();
  Result<StepMetrics> traced_step();
  void check_algorithms();
  Status validate();
  Result<RunEnd> finish(RunEnd end);
  Result<RunEnd> fail(const Error& error);
  Status save_checkpoint(bool is_last);
  Status wait_for_save();
  void say_not_removed();
  void close_logs(std::string_view status);
  void write_report(std::string_view status);
  void say(std::string_view event, const std::string& text);    // to the observer and the report
  void event(std::string_view event, const std::string& text);  // and to the log
  void log(const std::string& line);
  [[nodiscard]] double elapsed() const;
  [[nodiscard]] TrainingState state() const;
  [[nodiscard]] std::string path(std::string_view name) const;  // in the output folder

  std::unique_ptr<Trainer> trainer_;
  RunObserver* observer_ = nullptr;
  const std::atomic<bool>* stop_ = nullptr;
  TrainingState unchanging_;                       // what all checkpoints of the run say: all but the position
  std::unique_ptr<CheckpointFolder> checkpoints_;  // null: nothing is kept
  std::unique_ptr<MetricsLog> log_;
  RunReport report_;
  Progress progress_;
  std::chrono::steady_clock::time_point start_, report_time_;
  int64_t last_saved_ = -1, last_validated_ = -1;
  bool is_validation_missing_ = false;  // of the step that the run was resumed after
  int64_t num_unlogged_ = 0;            // records that could not be written, since the log began to fail
  std::string trace_file_;              // "" = no trace
  Settings stored_algorithms_;          // of the checkpoint that the run goes on from, until a step has used them
};

}  // namespace glim
