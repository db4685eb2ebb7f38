#include "runtime/run/training_run.h"

#include <fmt/format.h>

#include <filesystem>

#include "models/hf_config.h"
#include "runtime/atomic_file.h"
#include "runtime/backend.h"
#include "runtime/run/identity.h"
#include "runtime/step_trace.h"

namespace glim {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kTracedStep = 3;     // of the process: the first ones choose algorithms and capture
constexpr double kReportSeconds = 20;  // run.html is written this often at most while nothing else happens

}  // namespace

std::string TrainingRun::path(std::string_view name) const { return (fs::path(trainer_->config().output) / name).string(); }

double TrainingRun::elapsed() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

Result<TrainingRun> TrainingRun::open(const TrainConfig& config, const std::string& resume, RunObserver& observer) {
  TrainingRun run;
  run.observer_ = &observer;
  run.start_ = run.report_time_ = std::chrono::steady_clock::now();
  if (config.output.empty() && resume == "auto")
    return invalid_argument("--resume auto looks in the run's folder, but 'output' names none");
  GLIM_ASSIGN(Trainer trainer, Trainer::create(config));
  run.trainer_ = std::make_unique<Trainer>(std::move(trainer));
  run.unchanging_.identity = run_identity(run.trainer_->setup(), run.trainer_->model().compiled());
  run.unchanging_.choices = run_choices(config);
  run.unchanging_.configuration = config.source_text;
  Result<std::string> hf_config = checkpoint_config(run.trainer_->setup().source.spec, config.dtype);
  if (hf_config) run.unchanging_.hf_config = *std::move(hf_config);  // one that cannot be written: saved without
  if (!config.output.empty()) {
    GLIM_ASSIGN(run.checkpoints_,
                CheckpointFolder::open(run.path("checkpoints"), {config.checkpoint.keep_last, config.checkpoint.keep_every}));
  }
  GLIM_TRY(run.resume_from(resume));
  return run;
}

TrainingState TrainingRun::state() const {
  TrainingState state = unchanging_;
  state.step = trainer_->steps_done();
  state.skipped_in_a_row = trainer_->skipped_in_a_row();
  state.algorithms = trainer_->model().executor().algorithms();
  return state;
}

Status TrainingRun::resume_from(const std::string& resume) {
  std::vector<int64_t> steps;  // that the folder holds, the highest first
  if (checkpoints_ != nullptr) {
    GLIM_ASSIGN(steps, list_checkpoints(checkpoints_->path()));
  }
  if (resume.empty()) {
    if (!steps.empty()) {
      return invalid_argument(fmt::format("{} holds a run that has reached step {}: go on with --resume auto, or name another output",
                                          trainer_->config().output, steps.front()));
    }
    return start_logs();
  }
  std::optional<Checkpoint> found;
  std::vector<std::string> passed_over;
  if (resume == "auto") {
    GLIM_ASSIGN(NewestCheckpoint newest, checkpoints_->newest());
    found = std::move(newest.found);
    for (const PassedOver& each : newest.passed_over) passed_over.push_back(fmt::format("passed over: {}", each.reason));
    if (!found && !steps.empty()) {
      return invalid_file(fmt::format("none of the {} checkpoints in {} can be used; {}", steps.size(), checkpoints_->path(),
                                      fmt::join(passed_over, "; ")));
    }
  } else {
    GLIM_ASSIGN(found, open_checkpoint(resume));
    // Otherwise the next --resume auto would go on from a later one, which this run has never reached.
    if (!steps.empty() && steps.front() > found->state.step) {
      return invalid_argument(
          fmt::format("{} also holds the checkpoint of step {}, after step {}: move it away first, or name another output",
                      checkpoints_->path(), steps.front(), found->state.step));
    }
  }
  if (!found) {
    GLIM_TRY(start_logs());
    for (const std::string& each : passed_over) event("warning", each);
    event("started", "a new run: there is no checkpoint to go on from");
    return ok();
  }
  Result<Resumed> restored = restore(trainer_->model(), *found, state());
  if (!restored) {
    if (!passed_over.empty()) restored.error().message += fmt::format("; {}", fmt::join(passed_over, "; "));
    return restored.error();
  }
  const Resumed& resumed = *restored;
  trainer_->set_position(resumed.state.step, resumed.state.skipped_in_a_row);
  if (!trainer_->config().strict) stored_algorithms_ = resumed.state.algorithms;
  std::error_code error;
  if (fs::equivalent(parent_folder(found->path), path("checkpoints"), error)) last_saved_ = found->state.step;
  GLIM_TRY(start_logs());
  for (const std::string& each : passed_over) event("warning", each);
  event("resumed", fmt::format("resumed after step {} from {}", resumed.state.step, found->path));
  for (const std::string& each : resumed.changed_choices) event("warning", each);
  return ok();
}

Status TrainingRun::start_logs() {
  progress_.elapsed_seconds = elapsed();
  if (checkpoints_ == nullptr) return ok();
  report_ = RunReport(*trainer_);
  const int64_t done = trainer_->steps_done(), every = trainer_->config().validate_every;
  bool is_step_logged = false;
  const auto seen = [&](const MetricsLine& line) {
    report_.add(line);
    if (line.step != done) return;
    if (line.find("num_tokens")) is_step_logged = true;
    if (line.find("validation_token_accuracy")) last_validated_ = done;
  };
  GLIM_ASSIGN(MetricsLog log, MetricsLog::open(path("metrics.jsonl"), done, seen));
  log_ = std::make_unique<MetricsLog>(std::move(log));
  is_validation_missing_ = is_step_logged && every > 0 && done % every == 0 && last_validated_ != done;
  GLIM_TRY(write_file_atomically(path("train.toml"), trainer_->config().source_text));
  return write_file_atomically(path("run.html"), report_.html("running", progress_));
}

// A log that cannot be written now may be written later: a disk that was full has room again.
void TrainingRun::log(const std::string& line) {
  if (log_ == nullptr) return;
  if (const Status status = log_->append(line); !status) {
    if (num_unlogged_++ == 0) say("warning", fmt::format("metrics.jsonl: records are lost from here on: {}", status.error().to_string()));
    return;
  }
  const int64_t num_lost = std::exchange(num_unlogged_, 0);
  if (num_lost > 0) event("warning", fmt::format("metrics.jsonl is written again; records lost: {}", num_lost));
}

void TrainingRun::say(std::string_view event, const std::string& text) {
  observer_->on_event(trainer_->steps_done(), event, text);
  report_.add_event(trainer_->steps_done(), event, text);
}

void TrainingRun::event(std::string_view event, const std::string& text) {
  say(event, text);
  log(event_line(trainer_->steps_done(), event, text));
}

void TrainingRun::close_logs(std::string_view status) {
  if (num_unlogged_ > 0) say("warning", fmt::format("metrics.jsonl could not be written until the end; records lost: {}", num_unlogged_));
  write_report(status);
}

void TrainingRun::write_report(std::string_view status) {
  report_time_ = std::chrono::steady_clock::now();
  progress_.elapsed_seconds = elapsed();
  progress_.resident_bytes = resident_bytes();
  if (checkpoints_ == nullptr) return;
  if (const Status written = write_file_atomically(path("run.html"), report_.html(status, progress_)); !written)
    observer_->on_event(trainer_->steps_done(), "warning", written.error().to_string());
}

// kCancelled when the run is told to stop before it ends: half a validation is none.
Status TrainingRun::validate() {
  if (trainer_->data().num_validation_rows() == 0 || last_validated_ == trainer_->steps_done()) return ok();
  trainer_->model().set_cancellation(stop_);
  const Result<Evaluation> evaluation = trainer_->validate();
  trainer_->model().set_cancellation(nullptr);
  if (!evaluation) return evaluation.error();
  last_validated_ = trainer_->steps_done();
  observer_->on_validation(last_validated_, *evaluation);
  report_.add(last_validated_, *evaluation);
  log(validation_line(last_validated_, *evaluation));
  return ok();
}

// The save is good all the same.
void TrainingRun::say_not_removed() {
  if (const std::string text = checkpoints_->take_not_removed(); !text.empty()) event("warning", text);
}

Status TrainingRun::wait_for_save() {
  Status saved = checkpoints_->wait();
  say_not_removed();
  return saved;
}

// The last save is waited for, and its error is the run's. Any other goes on beside the training, which a full disk does not end.
Status TrainingRun::save_checkpoint(bool is_last) {
  const int64_t step = trainer_->steps_done();
  if (checkpoints_ == nullptr) return ok();
  if (last_saved_ == step) {  // by the save of this step, which may still be on its way
    const Status saved = is_last ? wait_for_save() : ok();
    if (saved) return ok();
    event("warning", fmt::format("not saved, trying again: {}", saved.error().to_string()));
  }
  const Status status = checkpoints_->save(trainer_->model(), state());
  say_not_removed();  // by the save before
  if (!status) event("warning", fmt::format("not saved{}: {}", is_last ? "" : ", training goes on", status.error().to_string()));
  if (!checkpoints_->started()) return is_last ? status : ok();  // otherwise the error is that of an earlier save
  last_saved_ = step;
  if (is_last) GLIM_TRY(wait_for_save());
  event("checkpoint", fmt::format("{} {}", is_last ? "saved" : "saving", checkpoints_->path() + "/" + checkpoint_name(step)));
  return ok();
}

Result<StepMetrics> TrainingRun::traced_step() {
  StepTrace trace(fmt::format("glim train, step {}, {}", trainer_->steps_done() + 1, to_string(trainer_->config().backend)));
  GLIM_ASSIGN(const StepMetrics metrics, trainer_->step(&trace));
  if (const Status written = write_file_atomically(trace_file_, trace.json()); !written)
    event("warning", fmt::format("no trace: {}", written.error().to_string()));
  else
    event("trace", fmt::format("the timeline of step {} is in {}", metrics.step, trace_file_));
  return metrics;
}

// After the first step of a run that goes on: which stored algorithms it could not use.
void TrainingRun::check_algorithms() {
  if (stored_algorithms_.empty()) return;
  const Settings now = trainer_->model().executor().algorithms();
  size_t num_changed = 0;
  std::string first;
  for (const auto& [product, algorithm] : std::exchange(stored_algorithms_, {})) {
    const auto found = now.find(product);
    if (found == now.end() || found->second == algorithm) continue;
    if (num_changed++ == 0) first = product;
  }
  if (num_changed == 0) return;
  event("warning",
        fmt::format("{} of {} matrix products cannot run here with the algorithm that the checkpoint names, and were timed again "
                    "(the first: {})",
                    num_changed, now.size(), first));
}

Result<RunEnd> TrainingRun::finish(RunEnd end) {
  if (end == RunEnd::kStopped) {
    event("stopped", fmt::format("told to stop after step {}", trainer_->steps_done()));
  } else if (const Status validated = validate(); !validated) {
    return fail(validated.error());
  }
  if (const Status saved = save_checkpoint(true); !saved) return fail(saved.error());
  if (end != RunEnd::kStopped && checkpoints_ != nullptr) {
    if (const Status saved = trainer_->save(path("model")); !saved) return fail(saved.error());
    event("finished", fmt::format("weights written to {}", path("model")));
  }
  close_logs(end == RunEnd::kFinished ? "finished" : end == RunEnd::kStopped ? "stopped" : "stopped (out of time)");
  return end;
}

// What was reached is kept, and every log says why it ends.
Result<RunEnd> TrainingRun::fail(const Error& error) {
  if (error.code == ErrorCode::kCancelled) return finish(RunEnd::kStopped);  // only by the stop flag
  event("failed", error.to_string());
  if (const Status saved = save_checkpoint(true); !saved) event("warning", saved.error().to_string());
  close_logs("failed");
  return error;
}

Result<RunEnd> TrainingRun::run(const std::atomic<bool>& stop) {
  const TrainConfig& config = trainer_->config();
  stop_ = &stop;
  ProgressMeter meter(config, trainer_->steps_done());
  if (is_validation_missing_) {
    if (const Status validated = validate(); !validated) return fail(validated.error());
  }
  const int64_t traced = trace_file_.empty() ? 0 : std::min(trainer_->steps_done() + kTracedStep, config.steps);
  while (trainer_->steps_done() < config.steps) {
    if (stop) return finish(RunEnd::kStopped);
    if (config.max_seconds > 0 && elapsed() >= config.max_seconds) return finish(RunEnd::kOutOfTime);
    Result<StepMetrics> metrics = trainer_->steps_done() + 1 == traced ? traced_step() : trainer_->step();
    if (!metrics) return fail(metrics.error());
    check_algorithms();
    progress_ = meter.add(*metrics, elapsed());
    observer_->on_step(*metrics, progress_);
    report_.add(*metrics);
    log(step_line(*metrics, progress_));
    for (const std::string& line : take_backend_notes()) event("backend", line);
    if (metrics->skipped) event("skipped", "the gradients were not finite: parameters and moments stay as they were");
    if (config.validate_every > 0 && metrics->step % config.validate_every == 0) {
      if (const Status validated = validate(); !validated) return fail(validated.error());
    }
    if (config.checkpoint.every > 0 && metrics->step % config.checkpoint.every == 0) (void)save_checkpoint(false);
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - report_time_).count() > kReportSeconds) write_report("running");
  }
  return finish(RunEnd::kFinished);
}

}  // namespace glim
