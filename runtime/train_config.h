#pragma once
// What `glim train CONFIG.toml` reads. Paths are relative to the file, or, where nothing lies there, to the working directory.
#include <span>
#include <string>
#include <vector>

#include "autodiff/training.h"
#include "engine/pass.h"
#include "runtime/backend.h"
#include "runtime/data/data_config.h"

namespace glim {

struct CheckpointConfig {
  int64_t every = 0;       // optimizer steps; 0 = at the end, and when the run is told to stop
  int64_t keep_last = 3;   // that many of the newest stay
  int64_t keep_every = 0;  // and those whose step is a multiple of this; 0 = no others
};

struct TrainConfig {
  std::string model;             // MODEL, as on the command line
  std::vector<std::string> set;  // "name=value" for the model
  std::string weights;           // to start from; "" = drawn from the seed
  DataConfig data;               // [data]
  int64_t tokens = 512;          // [train]: T, per micro-step
  int64_t micro_steps = 1;       // per optimizer step
  int64_t steps = 0;
  double max_seconds = 0;             // stop after this long; 0 = no limit
  double learning_rate = 1e-3;        // after warm-up
  double final_learning_rate = 1e-4;  // the end of the cosine
  int64_t warmup_steps = 20;
  AdamWOptions adamw;
  uint64_t seed = 1;
  DType dtype = DType::kF32;
  Backend backend = Backend::kCpu;
  bool strict = false;  // matrix products of the device are never timed: the same algorithms on every run, whatever the machine does
  Rematerialise rematerialise = Rematerialise::kNone;
  int64_t log_every = 10;
  int64_t validate_every = 0;  // steps; 0 = at the end only
  // Folder of the run: model/ (the final weights, a Hugging Face folder), checkpoints/, metrics.jsonl, run.html. "" = nothing is kept.
  std::string output;
  CheckpointConfig checkpoint;
  double peak_tflops = 0;   // what the machine could do at best, for the model FLOPs utilisation (MFU); 0 = not known
  std::string source_text;  // the file, and below it the settings that were changed from outside
};

// `settings` are "table.key=value" (a TOML value; a bare word is a string) and win over the file.
Result<TrainConfig> load_train_config(const std::string& file, std::span<const std::string> settings = {});

// Linear warm-up from 0, then half a cosine down to final_learning_rate at the last step. `step` counts from 0.
[[nodiscard]] double learning_rate_at(const TrainConfig& config, int64_t step);

// "none", "selective", "full", "auto".
[[nodiscard]] Result<Rematerialise> parse_rematerialise(std::string_view text);
[[nodiscard]] std::string_view to_string(Rematerialise policy);

}  // namespace glim
