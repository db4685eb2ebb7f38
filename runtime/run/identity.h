#pragma once
// What makes two runs the same run: resuming wants it equal, and names what is not.
#include "runtime/checkpoint/training_state.h"
#include "runtime/trainer.h"

namespace glim {

// Equal, or the bits of the next step mean something else: model (its dims by name, and its whole graph), data, T, micro-steps, seed,
// dtype.
[[nodiscard]] Settings run_identity(const TrainingSetup& setup, const CompiledModel& compiled);
// May differ when a run goes on, and is then worth a word: the schedule, the optimizer's settings, what computes products here.
[[nodiscard]] Settings run_choices(const TrainConfig& config);

}  // namespace glim
