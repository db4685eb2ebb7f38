#include "runtime/checkpoint/snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

namespace glim {
namespace {

std::vector<TensorSpec> specs_of(const std::vector<StateTensor>& tensors) {
  std::vector<TensorSpec> specs;
  for (const StateTensor& tensor : tensors) specs.push_back(tensor.spec);
  return specs;
}

}  // namespace

Result<StateTensors> list_state(const CompiledModel& model) {
  StateTensors out;
  std::map<std::string, std::string, std::less<>> optimizer_names{{std::string(kStepName), std::string(kStepName)}};
  for (const ModelParameter& parameter : model.parameters) {
    const std::string& name = parameter.saved_name();
    if (model.layout.find(parameter.name) == nullptr)
      return invalid_argument(
          fmt::format("no program of the model reads the parameter '{}', so its value cannot be saved", parameter.name));
    out.weights.push_back({parameter.name, tensor_spec(name, parameter.type)});
    optimizer_names[master_name(parameter.name)] = master_name(name);
    for (const int k : {0, 1}) optimizer_names[moment_name(parameter.name, k)] = moment_name(name, k);
  }
  for (const auto& [state, slot] : model.layout.slots()) {
    if (slot.arena != Arena::kOptimizer) continue;
    const auto name = optimizer_names.find(state);
    GLIM_CHECK(name != optimizer_names.end(), "optimizer state without a name in checkpoints: " + state);
    out.optimizer.push_back({state, tensor_spec(name->second, slot.type)});
  }
  return out;
}

size_t state_bytes(const CompiledModel& model) {
  size_t total = 0;
  for (const auto& [state, slot] : model.layout.slots()) {
    if (slot.arena == Arena::kParameters || slot.arena == Arena::kOptimizer) total += slot.type.bytes();
  }
  return total;
}

Status Snapshot::capture(const Model& model) {
  GLIM_ASSIGN(tensors_, list_state(model.compiled()));
  const size_t total = state_bytes(model.compiled());
  if (total > bytes_) {
    bytes_ = 0;
    buffer_.reset();  // first: both would not fit
    buffer_.reset(new (std::nothrow) std::byte[total]);
    if (buffer_ == nullptr)
      return Error{ErrorCode::kOutOfMemory, fmt::format("{} bytes for the snapshot that a checkpoint is written from", total)};
    bytes_ = total;
  }
  places_.clear();
  std::byte* at = buffer_.get();
  for (const auto* group : {&tensors_.weights, &tensors_.optimizer}) {
    for (const StateTensor& tensor : *group) {
      const std::span<std::byte> place{at, model.compiled().layout.find(tensor.state)->type.bytes()};
      GLIM_CHECK(place.size() <= total - static_cast<size_t>(at - buffer_.get()), "state that state_bytes does not count");
      GLIM_TRY(model.read_state(tensor.state, place));
      if (!places_.emplace(tensor.spec.name, place).second)
        return invalid_argument(fmt::format("two tensors of the model would be called '{}' in a checkpoint", tensor.spec.name));
      at += place.size();
    }
  }
  return ok();
}

std::vector<TensorSpec> Snapshot::weights() const { return specs_of(tensors_.weights); }
std::vector<TensorSpec> Snapshot::optimizer() const { return specs_of(tensors_.optimizer); }

TensorSource Snapshot::source() const {
  return [this](const TensorSpec& spec) -> Result<std::span<const std::byte>> {
    const auto place = places_.find(spec.name);
    GLIM_CHECK(place != places_.end(), "a tensor that is not in the snapshot");
    return place->second;
  };
}

}  // namespace glim
