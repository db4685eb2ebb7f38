#pragma once
#include "engine/error.h"
#include "runtime/trainer.h"

namespace glim::cli {

// `glim train --dry-run`: model, data, steps, FLOPs, memory and disk of a run, from the compiler and the data's index alone.
Status dry_run(const TrainConfig& config, bool json);

}  // namespace glim::cli
