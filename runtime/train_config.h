#pragma once
// What `glim train CONFIG.toml` reads. Relative paths are relative to the file.
#include <string>
#include <vector>

#include "autodiff/training.h"
#include "engine/pass.h"
#include "runtime/backend.h"

namespace glim {

struct TrainConfig {
  std::string model;              // MODEL, as on the command line
  std::vector<std::string> set;   // "name=value" for the model
  std::string weights;            // to start from; "" = drawn from the seed
  std::vector<std::string> text;  // [data]: files or folders of .txt
  double validation_fraction = 0.02;
  int64_t tokens = 512;     // [train]: T, per micro-step
  int64_t micro_steps = 1;  // per optimizer step
  int64_t steps = 0;
  double max_seconds = 0;             // stop after this long; 0 = no limit
  double learning_rate = 1e-3;        // after warm-up
  double final_learning_rate = 1e-4;  // the end of the cosine
  int64_t warmup_steps = 20;
  AdamWOptions adamw;
  uint64_t seed = 1;
  DType dtype = DType::kF32;
  Backend backend = Backend::kCpu;
  Rematerialise rematerialise = Rematerialise::kNone;
  int64_t log_every = 10;
  int64_t validate_every = 0;  // steps; 0 = at the end only
  std::string output;          // folder of the final weights; "" = none
};

Result<TrainConfig> load_train_config(const std::string& file);

// Linear warm-up from 0, then half a cosine down to final_learning_rate at the last step. `step` counts from 0.
[[nodiscard]] double learning_rate_at(const TrainConfig& config, int64_t step);

// "none", "selective", "full", "auto".
[[nodiscard]] Result<Rematerialise> parse_rematerialise(std::string_view text);
[[nodiscard]] std::string_view to_string(Rematerialise policy);

}  // namespace glim
