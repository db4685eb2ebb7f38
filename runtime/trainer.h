#pragma once
// One optimizer step after another: micro-steps, the update, and what a person wants to know about them.
// runtime/run/ makes a run of it: checkpoints, resuming, logs.
#include <memory>

#include "runtime/data/training_data.h"
#include "runtime/evaluate.h"
#include "runtime/model_source.h"
#include "runtime/train_config.h"

namespace glim {

// All that can be known before memory is taken: also what `glim train --dry-run` shows.
struct TrainingSetup {
  TrainConfig config;
  ModelSource source;
  std::unique_ptr<TrainingData> data;
  CompiledModel compiled;
  std::string graph_digest;  // of the forward graph's text as the model file says it, before any pass
  double micro_step_flops = 0, update_flops = 0;
};
Result<TrainingSetup> prepare_training(const TrainConfig& config);

struct StepMetrics {
  int64_t step = 0;           // steps done, this one included
  double loss = 0;            // mean over the valid targets of the whole step
  double token_accuracy = 0;  // right predictions / valid targets of the whole step
  int64_t num_correct = 0, num_valid = 0, num_tokens = 0;
  double learning_rate = 0, gradient_norm = 0;
  bool skipped = false;  // the gradients were not finite; nothing changed
  double seconds = 0;
  double flops = 0;  // multiplied and added by the model's programs in this step
};

class StepTrace;

class Trainer {
 public:
  static Result<Trainer> create(const TrainConfig& config);
  static Result<Trainer> create(TrainingSetup setup);

  // One optimizer step: every micro-step's loss is divided by the valid targets of the whole step, so accumulation needs no
  // correction. After kMaxSkipped steps in a row without finite gradients: kNumeric, with the first node that is not finite.
  // With a trace, the programs run step by step, to the same bits, and leave there when each of their steps ran.
  Result<StepMetrics> step(StepTrace* trace = nullptr);
  // Over the held-out rows (at most max_rows of them; 0 = all).
  Result<Evaluation> validate(int64_t max_rows = 0);
  // The weights as a Hugging Face folder.
  Status save(const std::string& folder);

  [[nodiscard]] const TrainingData& data() const { return *setup_->data; }
  [[nodiscard]] Model& model() { return *model_; }
  [[nodiscard]] const TrainConfig& config() const { return setup_->config; }
  [[nodiscard]] const TrainingSetup& setup() const { return *setup_; }
  [[nodiscard]] int64_t steps_done() const { return steps_done_; }
  [[nodiscard]] int64_t skipped_in_a_row() const { return skipped_in_a_row_; }
  // Where to go on: the data and the learning rate follow from the step alone. The model's state is restored by who calls this.
  void set_position(int64_t steps_done, int64_t skipped_in_a_row);

  static constexpr int kMaxSkipped = 5;

 private:
  Trainer() = default;
  Result<StepMetrics> give_up();

  std::unique_ptr<TrainingSetup> setup_;
  std::unique_ptr<Model> model_;
  int64_t steps_done_ = 0, skipped_in_a_row_ = 0;
};

// FLOPs of one run of a program.
[[nodiscard]] double count_flops(const Graph& graph);

}  // namespace glim
