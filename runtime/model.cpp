#include "runtime/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/suggest.h"
#include "models/derived.h"
#include "ops/bf16.h"
#include "runtime/random.h"

namespace glim {
namespace {

double read_element(DType dtype, const std::byte* bytes) {
  const auto load = [&](auto value) {
    std::memcpy(&value, bytes, sizeof value);
    return static_cast<double>(value);
  };
  switch (dtype) {
    case DType::kF64: return load(double{});
    case DType::kF32: return load(float{});
    case DType::kBF16: return load(Bf16{});
    case DType::kI64: return load(int64_t{});
    case DType::kI32: return load(int32_t{});
  }
  return 0;
}

void write_element(DType dtype, std::byte* bytes, double number) {
  const auto store = [&](auto value) { std::memcpy(bytes, &value, sizeof value); };
  switch (dtype) {
    case DType::kF64: return store(number);
    case DType::kF32: return store(static_cast<float>(number));
    case DType::kBF16: return store(Bf16(number));
    case DType::kI64: return store(static_cast<int64_t>(number));
    case DType::kI32: return store(static_cast<int32_t>(number));
  }
}

}  // namespace

double HostTensor::at(int64_t i) const { return read_element(type.dtype, bytes.data() + static_cast<size_t>(i) * size_of(type.dtype)); }
void HostTensor::set(int64_t i, double value) {
  write_element(type.dtype, bytes.data() + static_cast<size_t>(i) * size_of(type.dtype), value);
}

Result<Model> Model::create(CompiledModel compiled, int num_threads, Backend backend, ProductAlgorithms algorithms) {
  Model model;
  model.compiled_ = std::make_unique<CompiledModel>(std::move(compiled));
  std::vector<const Program*> programs;
  for (const auto& program : model.compiled_->programs) programs.push_back(program.get());
  GLIM_ASSIGN(model.machine_, open_machine(backend, programs, num_threads, algorithms));
  for (const Program* program : programs) model.executables_.emplace_back(*program, model.machine_.arenas);
  if (model.compiled_->layout.find(kSeedName) != nullptr) GLIM_TRY(model.set_scalar(kSeedName, 1.0));
  return model;
}

TensorView Model::view_of(const LeafSlot& slot) const { return contiguous_view(machine_.arenas.at(slot.arena, slot.offset), slot.type); }

Status Model::initialise(uint64_t seed) {
  HostTensor weight;  // one buffer for all: touching fresh memory takes longer than drawing
  for (const ModelParameter& parameter : compiled_->parameters) {
    if (!has_state(parameter.name)) continue;
    weight.type = parameter.type;
    weight.bytes.resize(parameter.type.bytes());
    const uint64_t stream = make_stream(seed, parameter.name);
    for_elements(machine_.executor->pool(), parameter.type.shape.numel(), [&](int64_t i) {
      weight.set(i, parameter.init == InitKind::kConstant ? parameter.init_value
                                                          : parameter.init_value * normal_draw(stream, static_cast<uint64_t>(i)));
    });
    GLIM_TRY(set_state(parameter.name, weight.bytes));
  }
  return reset_optimizer();
}

Status Model::reset_optimizer() {
  for (const auto& [name, slot] : compiled_->layout.slots()) {
    if (slot.arena == Arena::kOptimizer) GLIM_TRY(machine_.executor->clear(view_of(slot)));
  }
  HostTensor weight, master;
  for (const ModelParameter& parameter : compiled_->parameters) {
    if (!has_state(master_name(parameter.name))) continue;
    weight.type = parameter.type;
    weight.bytes.resize(weight.type.bytes());
    GLIM_TRY(read_state(parameter.name, weight.bytes));
    master.type = {accumulation_dtype(weight.type.dtype), weight.type.shape};
    master.bytes.resize(master.type.bytes());
    for_elements(machine_.executor->pool(), weight.type.shape.numel(), [&](int64_t i) { master.set(i, weight.at(i)); });
    GLIM_TRY(set_state(master_name(parameter.name), master.bytes));
  }
  return ok();
}

Status Model::set_input(std::string_view name, std::span<const int32_t> values) {
  const auto input =
      std::find_if(compiled_->inputs.begin(), compiled_->inputs.end(), [&](const ModelInput& each) { return each.name == name; });
  if (input == compiled_->inputs.end()) {
    std::vector<std::string> names;
    for (const ModelInput& each : compiled_->inputs) names.push_back(each.name);
    return invalid_argument(fmt::format("the model has no input '{}'{}", name, did_you_mean(name, names)));
  }
  GLIM_TRY(check_input(*input, values));
  const LeafSlot* slot = compiled_->layout.find(name);
  if (slot == nullptr) return ok();  // no program reads it
  if (input->zeroed.empty()) return machine_.executor->write(view_of(*slot), std::as_bytes(values));
  std::vector<int32_t> changed(values.begin(), values.end());
  for (const int64_t placeholder : input->zeroed) std::replace(changed.begin(), changed.end(), static_cast<int32_t>(placeholder), 0);
  return machine_.executor->write(view_of(*slot), std::as_bytes(std::span(changed)));
}

Status Model::set_scalar(std::string_view name, double value) {
  const LeafSlot* slot = compiled_->layout.find(name);
  if (slot == nullptr || slot->type.shape.numel() != 1) return invalid_argument(fmt::format("the model has no scalar input '{}'", name));
  std::byte bytes[sizeof(double)];
  write_element(slot->type.dtype, bytes, value);
  return machine_.executor->write(view_of(*slot), std::span<const std::byte>(bytes).first(slot->type.bytes()));
}

Status Model::set_inputs(std::map<std::string, std::vector<int32_t>, std::less<>> values) {
  GLIM_TRY(derive_inputs(compiled_->inputs, values));
  for (const ModelInput& input : compiled_->inputs) {
    if (input.type.dtype != DType::kI32) continue;
    const auto found = values.find(input.name);
    if (found == values.end()) return invalid_argument(fmt::format("input '{}' ({}) was not given", input.name, to_string(input.type)));
    // A bucket may be larger than the data: what lies behind it is not looked at.
    const auto extent = static_cast<size_t>(input.type.shape.numel());
    const int64_t padding = input.allow.value_or(input.range ? input.range->first : 0);
    if (found->second.size() < extent) found->second.resize(extent, static_cast<int32_t>(padding));
    GLIM_TRY(set_input(input.name, found->second));
  }
  return ok();
}

const Executable* Model::executable(ProgramKind kind) const {
  for (const Executable& each : executables_) {
    if (each.program().name == to_string(kind)) return &each;
  }
  return nullptr;
}

Status Model::run(ProgramKind kind) {
  const Executable* bound = executable(kind);
  GLIM_CHECK(bound != nullptr, "the model was compiled without this program");
  Executor& executor = *machine_.executor;
  if (cancellation_ == nullptr) return executor.run(*bound);
  if (cancellation_->load()) return Error{ErrorCode::kCancelled, fmt::format("cancelled before the program '{}'", to_string(kind))};
  executor.set_cancellation(kind == ProgramKind::kUpdate ? nullptr : cancellation_);  // half an update would be no state of the model
  Status status = executor.run(*bound);
  executor.set_cancellation(nullptr);
  return status;
}

Result<HostTensor> Model::output(ProgramKind kind, std::string_view name) const {
  const Executable* bound = executable(kind);
  GLIM_CHECK(bound != nullptr, "the model was compiled without this program");
  const ValueId v = bound->program().graph.find_output(name);
  if (!v.valid()) {
    std::vector<std::string> names;
    for (const NamedValue& output : bound->program().graph.outputs()) names.push_back(output.name);
    return invalid_argument(fmt::format("the program has no output '{}'{}", name, did_you_mean(name, names)));
  }
  const TensorView view = bound->view(v);
  HostTensor tensor{view.type, std::vector<std::byte>(view.type.bytes())};
  GLIM_TRY(machine_.executor->read(view, tensor.bytes));
  return tensor;
}

Result<double> Model::scalar(ProgramKind kind, std::string_view name) const {
  GLIM_ASSIGN(const HostTensor tensor, output(kind, name));
  GLIM_CHECK(tensor.type.shape.numel() == 1, "not a scalar output");
  return tensor.at(0);
}

bool Model::has_state(std::string_view name) const { return compiled_->layout.find(name) != nullptr; }

Result<HostTensor> Model::state(std::string_view name) const {
  const LeafSlot* slot = compiled_->layout.find(name);
  if (slot == nullptr) return invalid_argument(fmt::format("the model has no state '{}'", name));
  HostTensor tensor{slot->type, std::vector<std::byte>(slot->type.bytes())};
  GLIM_TRY(machine_.executor->read(view_of(*slot), tensor.bytes));
  return tensor;
}

Status Model::read_state(std::string_view name, std::span<std::byte> to) const {
  const LeafSlot* slot = compiled_->layout.find(name);
  if (slot == nullptr || to.size() != slot->type.bytes())
    return invalid_argument(fmt::format("state '{}' has {} bytes, not {}", name, slot == nullptr ? 0 : slot->type.bytes(), to.size()));
  return machine_.executor->read(view_of(*slot), to);
}

Status Model::set_state(std::string_view name, std::span<const std::byte> bytes) {
  const LeafSlot* slot = compiled_->layout.find(name);
  if (slot == nullptr || bytes.size() != slot->type.bytes())
    return invalid_argument(fmt::format("state '{}' has {} bytes, not {}", name, slot == nullptr ? 0 : slot->type.bytes(), bytes.size()));
  return machine_.executor->write(view_of(*slot), bytes);
}

}  // namespace glim
