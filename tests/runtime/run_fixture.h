#pragma once
// Small runs, and what they told.
#include <functional>

#include "runtime/run/training_run.h"
#include "tests/runtime/small_model.h"

namespace glim {

struct Recorder final : RunObserver {
  std::vector<StepMetrics> steps;
  std::vector<std::pair<int64_t, Evaluation>> validations;
  std::vector<std::pair<int64_t, std::string>> events;  // step, "event: text"
  int64_t stop_after = -1;
  std::atomic<bool> stop{false};
  std::function<void(int64_t step)> after_step;  // called before the step is logged

  void on_step(const StepMetrics& metrics, const Progress&) override {
    steps.push_back(metrics);
    if (metrics.step == stop_after) stop = true;
    if (after_step) after_step(metrics.step);
  }
  void on_validation(int64_t step, const Evaluation& evaluation) override { validations.emplace_back(step, evaluation); }
  void on_event(int64_t step, std::string_view event, const std::string& text) override {
    events.emplace_back(step, std::string(event) + ": " + text);
  }
  [[nodiscard]] std::vector<int64_t> validated() const {
    std::vector<int64_t> after;
    for (const auto& [step, evaluation] : validations) after.push_back(step);
    return after;
  }
  [[nodiscard]] std::string all_events() const {
    std::string out;
    for (const auto& [step, text] : events) out += std::to_string(step) + " " + text + "\n";
    return out;
  }
};

struct Runs {
  ScratchFolder folder;
  TrainConfig config;

  explicit Runs(DType dtype = DType::kF32) {
    for (size_t k = 0; k < 9; ++k) {
      std::string text;
      for (size_t i = 0; i < 30 + 17 * k; ++i) text += static_cast<char>('a' + (i * (k + 3) + i / 7) % 13);
      write_file(folder / ("text" + std::to_string(k) + ".txt"), text);
    }
    config.model = GLIM_SOURCE_DIR "/models/muse_glimmer_tiny.toml";
    config.set = {"hidden=16", "feed_forward=24", "num_heads=2", "num_kv_heads=1", "head_dim=8", "num_layers=2", "sliding_window=8"};
    config.data.text = {folder.path()};
    config.data.validation_fraction = 0.1;
    config.tokens = 48;
    config.micro_steps = 3;
    config.steps = 20;
    config.warmup_steps = 4;
    config.learning_rate = 1e-2;
    config.dtype = dtype;
    config.checkpoint.every = 1;
    config.checkpoint.keep_last = 100;
    config.output = folder / "run";
    config.source_text = "# <made> by a test & \"quoted\"\n";
  }
  [[nodiscard]] std::string checkpoint(int64_t step) const { return folder / ("run/checkpoints/" + checkpoint_name(step)); }
};

struct Outcome {
  Recorder recorder;
  std::optional<Error> error;
  std::optional<RunEnd> end;
  std::map<std::string, std::string> state;  // all of it, as bytes
};

inline std::unique_ptr<Outcome> go(const TrainConfig& config, const std::string& resume = "", int64_t stop_after = -1,
                                   const std::function<void(int64_t)>& after_step = {}) {
  auto outcome = std::make_unique<Outcome>();
  outcome->recorder.stop_after = stop_after;
  outcome->recorder.after_step = after_step;
  Result<TrainingRun> run = TrainingRun::open(config, resume, outcome->recorder);
  if (!run) {
    outcome->error = run.error();
    return outcome;
  }
  const Result<RunEnd> end = run->run(outcome->recorder.stop);
  if (end)
    outcome->end = *end;
  else
    outcome->error = end.error();
  for (const auto& [name, slot] : run->trainer().model().compiled().layout.slots()) {
    if (slot.arena != Arena::kParameters && slot.arena != Arena::kOptimizer) continue;
    const Result<HostTensor> tensor = run->trainer().model().state(name);
    outcome->state[name].assign(reinterpret_cast<const char*>(tensor->bytes.data()), tensor->bytes.size());
  }
  return outcome;
}

}  // namespace glim
