#pragma once
// Reading checkpoints: the newest one that is undamaged, and its way back into a model. Nothing here writes to a disk.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/checkpoint/training_state.h"
#include "runtime/hf_folder.h"
#include "runtime/model.h"

namespace glim {

// A checkpoint of which every byte was verified. Its files stay mapped while it lives.
struct Checkpoint {
  std::string path;  // "run/checkpoints/step-00000120"
  TrainingState state;
  HfFolder weights, optimizer;
};

struct PassedOver {
  int64_t step = 0;    // -1: the name is no checkpoint's
  std::string reason;  // with the path
};
struct NewestCheckpoint {
  std::optional<Checkpoint> found;
  std::vector<PassedOver> passed_over;  // from the newest down: damaged, or not readable
};

[[nodiscard]] std::string checkpoint_name(int64_t step);  // "step-00000120"
// The steps of all entries of a folder that are called like a checkpoint, the highest first. Others that start with "step-" go to
// `strange`. kIo when the folder cannot be read; a folder that is not there has none.
[[nodiscard]] Result<std::vector<int64_t>> list_checkpoints(const std::string& folder, std::vector<std::string>* strange = nullptr);

// Verifies a checkpoint: manifest, size and checksum of every file, state.json, and that its tensors can be read.
[[nodiscard]] Result<Checkpoint> open_checkpoint(const std::string& path);
// From the newest step down, the first that verifies.
[[nodiscard]] Result<NewestCheckpoint> find_newest_checkpoint(const std::string& folder);

struct Resumed {
  TrainingState state;
  std::vector<std::string> changed_choices;  // of algorithms: what the run computes from here on may differ in the last bits
};
// Puts parameters, master weights, moments, step count and the algorithms of matrix products back. `now` is the run that wants to go on: a
// different identity is refused (kInvalidArgument, every difference named), and so are tensors of other names, shapes or dtypes than the
// model's (kInvalidFile). The model is untouched unless all is well.
[[nodiscard]] Result<Resumed> restore(Model& model, const Checkpoint& checkpoint, const TrainingState& now);

}  // namespace glim
