#pragma once
// The training loop: micro-steps, the update, and what a person wants to know about them.
#include <memory>

#include "runtime/data/training_data.h"
#include "runtime/evaluate.h"
#include "runtime/model_source.h"
#include "runtime/train_config.h"

namespace glim {

struct StepMetrics {
  int64_t step = 0;           // steps done, this one included
  double loss = 0;            // mean over the valid targets of the whole step
  double token_accuracy = 0;  // right predictions / valid targets of the whole step
  int64_t num_valid = 0, num_tokens = 0;
  double learning_rate = 0, gradient_norm = 0;
  bool skipped = false;  // the gradients were not finite; nothing changed
  double seconds = 0;
  double flops = 0;  // multiplied and added by the model's programs in this step
};
class Trainer {
 public:
  static Result<Trainer> create(const TrainConfig& config);

  // One optimizer step: every micro-step's loss is divided by the valid targets of the whole step, so accumulation needs no
  // correction. kNumeric after kMaxSkipped steps in a row without finite gradients.
  Result<StepMetrics> step();
  // Over the held-out rows (at most max_rows of them; 0 = all).
  Result<Evaluation> validate(int64_t max_rows = 0);
  Status save(const std::string& folder);

  [[nodiscard]] const TrainingData& data() const { return *data_; }
  [[nodiscard]] Model& model() { return *model_; }
  [[nodiscard]] const TrainConfig& config() const { return config_; }
  [[nodiscard]] int64_t steps_done() const { return steps_done_; }

  static constexpr int kMaxSkipped = 5;

 private:
  TrainConfig config_;
  std::unique_ptr<ModelSource> source_;
  std::unique_ptr<TrainingData> data_;
  std::unique_ptr<Model> model_;
  int64_t steps_done_ = 0;
  int skipped_in_a_row_ = 0;
  double micro_step_flops_ = 0, update_flops_ = 0;
};

// FLOPs of one run of a program.
[[nodiscard]] double count_flops(const Graph& graph);

}  // namespace glim
