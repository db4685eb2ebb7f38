#include "runtime/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "engine/quote.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/hf_names.h"

namespace glim {
namespace {

namespace fs = std::filesystem;

// The step of a name that checkpoint_name gives; -1 for any other.
int64_t step_of(std::string_view name) {
  if (!name.starts_with("step-")) return -1;
  const std::string_view digits = name.substr(5);
  int64_t step = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  return error == std::errc() && step >= 0 && checkpoint_name(step) == name ? step : -1;
}

// Names and shapes, then exactly the dtypes: a resumed run must have every bit.
Status check_fit(const HfFolder& folder, const std::vector<StateTensor>& tensors, const CompiledModel& model) {
  std::vector<ExpectedTensor> expected;
  for (const StateTensor& tensor : tensors) expected.push_back({tensor.spec.name, model.layout.find(tensor.state)->type});
  GLIM_TRY(check_tensors(folder, expected));
  for (const StateTensor& tensor : tensors) {
    const TensorSpec& stored = folder.find(tensor.spec.name)->spec;
    if (stored.dtype != tensor.spec.dtype) {
      return invalid_file(
          fmt::format("{}: {} is {}, the model has {}", folder.path(), quote(stored.name), describe(stored), describe(tensor.spec)));
    }
  }
  return ok();
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("step-{:08}", step); }

Result<std::vector<int64_t>> list_checkpoints(const std::string& folder, std::vector<std::string>* strange) {
  std::vector<int64_t> steps;
  std::error_code error;
  auto at = fs::directory_iterator(folder, error);
  if (error == std::errc::no_such_file_or_directory) return steps;
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (const int64_t step = step_of(name); step >= 0) {
      steps.push_back(step);
    } else if (strange != nullptr && name.starts_with("step-")) {
      strange->push_back(name);
    }
  }
  if (error) return io_error(folder, "cannot list the folder", error.value());
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

Result<Checkpoint> open_checkpoint(const std::string& path) {
  GLIM_ASSIGN(const Manifest manifest, verify_folder(path));
  const auto inside = [&path](const char* name) { return path + "/" + name; };
  GLIM_ASSIGN(const MappedFile state_file, MappedFile::open(inside(kStateName)));
  GLIM_ASSIGN(TrainingState state, parse_state_json(state_file.text(), inside(kStateName)));
  if (state.step != manifest.step)
    return invalid_file(fmt::format("{}: {} says step {}, {} says step {}", path, kStateName, state.step, kManifestName, manifest.step));
  GLIM_ASSIGN(const MappedFile configuration, MappedFile::open(inside(kConfigurationName)));
  state.configuration = configuration.text();
  GLIM_ASSIGN(HfFolder weights, HfFolder::open(path));
  if (weights.config_json() != nullptr) state.hf_config = *weights.config_json();
  GLIM_ASSIGN(HfFolder optimizer, HfFolder::open(inside(kOptimizerName)));
  return Checkpoint{path, std::move(state), std::move(weights), std::move(optimizer)};
}

Result<NewestCheckpoint> find_newest_checkpoint(const std::string& folder) {
  NewestCheckpoint newest;
  std::vector<std::string> strange;
  GLIM_ASSIGN(const std::vector<int64_t> steps, list_checkpoints(folder, &strange));
  for (const std::string& name : strange)
    newest.passed_over.push_back({-1, fmt::format("{}/{}: this is not the name of a checkpoint", folder, printable(name))});
  for (const int64_t step : steps) {
    Result<Checkpoint> checkpoint = open_checkpoint(folder + "/" + checkpoint_name(step));
    if (checkpoint && checkpoint->state.step != step)
      checkpoint = invalid_file(fmt::format("{}: this folder holds step {}", checkpoint->path, checkpoint->state.step));
    if (checkpoint) {
      newest.found.emplace(std::move(*checkpoint));
      break;
    }
    newest.passed_over.push_back({step, checkpoint.error().to_string()});
  }
  return newest;
}

Result<Resumed> restore(Model& model, const Checkpoint& checkpoint, const TrainingState& now) {
  if (const auto different = differences(checkpoint.state.identity, now.identity); !different.empty()) {
    return invalid_argument(fmt::format("{} is of another run: {}. Use the values of then, or begin a new run in another folder",
                                        checkpoint.path, fmt::join(different, "; ")));
  }
  GLIM_ASSIGN(const StateTensors tensors, list_state(model.compiled()));
  GLIM_TRY(check_fit(checkpoint.weights, tensors.weights, model.compiled()));
  GLIM_TRY(check_fit(checkpoint.optimizer, tensors.optimizer, model.compiled()));
  for (const StateTensor& tensor : tensors.weights)
    GLIM_TRY(model.set_state(tensor.state, checkpoint.weights.find(tensor.spec.name)->data));
  for (const StateTensor& tensor : tensors.optimizer)
    GLIM_TRY(model.set_state(tensor.state, checkpoint.optimizer.find(tensor.spec.name)->data));
  model.executor().set_algorithms(checkpoint.state.algorithms);
  return Resumed{checkpoint.state, differences(checkpoint.state.choices, now.choices)};
}

}  // namespace glim
