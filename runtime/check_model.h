#pragma once
// `glim check`: a model's gradients against finite differences, and its lowered programs against the plain ones.
#include "models/spec.h"
#include "runtime/backend.h"
#include "runtime/compile.h"

namespace glim {

struct CheckOptions {
  int64_t tokens = 32, segments = 2;
  uint64_t seed = 1;
  double scale = 0.3;       // spread of the random parameters that the check runs with; matrices wider than 32 get less
  double tolerance = 1e-6;  // of gradients against finite differences, relative
  double fused_tolerance = 1e-11;
  bool steps_only = false;  // only the last of the checks below: for models whose size makes the others too long
  int num_threads = 0;
  Backend backend = Backend::kCpu;
};
struct CheckLine {
  std::string what;  // "gradient of decoder.0.q_proj", "without fuse_forward: loss"
  double error = 0;  // relative
  double bound = 0;
  [[nodiscard]] bool passed() const { return error <= bound; }  // false for NaN
};

// Runs everything in f64 on random parameters, tokens and labels (about one in four ignored):
// - for each parameter tensor, <gradient, d> along a random direction d against the central difference of the loss;
// - the training micro-step with each pass disabled in turn against the one with all passes: loss, counts, every gradient;
// - a second run of the same program: bitwise equal.
// On another backend than the CPU, then also in f32 and in bf16, for each of those:
// - every step of the micro-step on both backends from the same operands; the lines name the nodes nearest to their bound.
Result<std::vector<CheckLine>> check_model(const ModelSpec& spec, const OpTable& table, const CheckOptions& options);

}  // namespace glim
