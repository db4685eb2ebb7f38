#pragma once
// What the steps since the last line were like, and how long the rest will take.
#include <cstdint>
#include <optional>

#include "runtime/trainer.h"

namespace glim {

// Averages over the steps since the last line, this one included.
struct Progress {
  double loss = 0, token_accuracy = 0;
  double tokens_per_second = 0, flops_per_second = 0;
  std::optional<double> mfu;  // share of the configured peak, 0 to 1
  double elapsed_seconds = 0, remaining_seconds = 0;
  size_t resident_bytes = 0;  // of this process
  bool due = false;           // a line is due at this step
};

class ProgressMeter {
 public:
  // `first_step`: steps done when the run began or was resumed.
  ProgressMeter(const TrainConfig& config, int64_t first_step) : config_(config), first_step_(first_step) {}
  Progress add(const StepMetrics& metrics, double elapsed_seconds);

 private:
  const TrainConfig& config_;
  int64_t first_step_;
  double loss_ = 0, seconds_ = 0, flops_ = 0;
  int64_t num_steps_ = 0, num_correct_ = 0, num_valid_ = 0, num_tokens_ = 0;
};

// Memory of this process that is in RAM now; 0 where the system does not say.
[[nodiscard]] size_t resident_bytes();

}  // namespace glim
