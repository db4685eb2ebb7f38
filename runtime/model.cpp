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

Result<Model> Model::create(CompiledModel compiled, int num_threads) {
  Model model;
  model.compiled_ = std::make_unique<CompiledModel>(std::move(compiled));
  GLIM_ASSIGN(Arenas arenas, Arenas::allocate(model.compiled_->arena_bytes()));
  model.arenas_ = std::make_unique<Arenas>(std::move(arenas));
  model.executor_ = std::make_unique<CpuExecutor>(num_threads);
  for (const auto& program : model.compiled_->programs) model.executables_.emplace_back(*program, *model.arenas_);
  if (model.compiled_->layout.find(kSeedName) != nullptr) GLIM_TRY(model.set_scalar(kSeedName, 1.0));
  return model;
}

void Model::initialise(uint64_t seed) {
  for (const ModelParameter& parameter : compiled_->parameters) {
    const std::span<std::byte> bytes = state_bytes(parameter.name);
    if (bytes.empty()) continue;  // no program reads it
    const size_t element = size_of(parameter.type.dtype);
    const uint64_t stream = make_stream(seed, parameter.name);
    constexpr int64_t kPerTask = 65536;
    const int64_t count = parameter.type.shape.numel();
    executor_->pool().parallel_for((count + kPerTask - 1) / kPerTask, [&](int64_t task) {
      for (int64_t i = task * kPerTask; i < std::min(count, (task + 1) * kPerTask); ++i) {
        const double value = parameter.init == InitKind::kConstant ? parameter.init_value
                                                                   : parameter.init_value * normal_draw(stream, static_cast<uint64_t>(i));
        write_element(parameter.type.dtype, bytes.data() + static_cast<size_t>(i) * element, value);
      }
    });
  }
  reset_optimizer();
}

void Model::reset_optimizer() {
  for (const auto& [name, slot] : compiled_->layout.slots()) {
    if (slot.arena == Arena::kOptimizer) std::ranges::fill(state_bytes(name), std::byte{0});
  }
  for (const ModelParameter& parameter : compiled_->parameters) {
    const std::span<std::byte> master = state_bytes(master_name(parameter.name)), bytes = state_bytes(parameter.name);
    if (master.empty()) continue;
    const DType wide = accumulation_dtype(parameter.type.dtype);
    for (size_t i = 0; i < master.size() / size_of(wide); ++i) {
      write_element(wide, master.data() + i * size_of(wide),
                    read_element(parameter.type.dtype, bytes.data() + i * size_of(parameter.type.dtype)));
    }
  }
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
  auto* to = reinterpret_cast<int32_t*>(arenas_->at(slot->arena, slot->offset));
  std::copy(values.begin(), values.end(), to);
  for (const int64_t placeholder : input->zeroed) std::replace(to, to + values.size(), static_cast<int32_t>(placeholder), 0);
  return ok();
}

Status Model::set_scalar(std::string_view name, double value) {
  const LeafSlot* slot = compiled_->layout.find(name);
  if (slot == nullptr || slot->type.shape.numel() != 1) return invalid_argument(fmt::format("the model has no scalar input '{}'", name));
  write_element(slot->type.dtype, arenas_->at(slot->arena, slot->offset), value);
  return ok();
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
  if (cancellation_ == nullptr) return executor_->run(*bound);
  if (cancellation_->load()) return Error{ErrorCode::kCancelled, fmt::format("cancelled before the program '{}'", to_string(kind))};
  executor_->set_cancellation(kind == ProgramKind::kUpdate ? nullptr : cancellation_);  // half an update would be no state of the model
  Status status = executor_->run(*bound);
  executor_->set_cancellation(nullptr);
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
  executor_->copy(view, contiguous_view(tensor.bytes.data(), view.type));
  return tensor;
}

double Model::scalar(ProgramKind kind, std::string_view name) const {
  const Result<HostTensor> tensor = output(kind, name);
  GLIM_CHECK(bool(tensor) && tensor->type.shape.numel() == 1, "not a scalar output");
  return tensor->at(0);
}

std::span<std::byte> Model::state_bytes(std::string_view name) const {
  const LeafSlot* slot = compiled_->layout.find(name);
  if (slot == nullptr) return {};
  return {arenas_->at(slot->arena, slot->offset), slot->type.bytes()};
}

Result<HostTensor> Model::state(std::string_view name) const {
  const LeafSlot* slot = compiled_->layout.find(name);
  if (slot == nullptr) return invalid_argument(fmt::format("the model has no state '{}'", name));
  const std::span<std::byte> bytes = state_bytes(name);
  return HostTensor{slot->type, {bytes.begin(), bytes.end()}};
}

Status Model::read_state(std::string_view name, std::span<std::byte> to) const {
  const std::span<std::byte> bytes = state_bytes(name);
  if (to.size() != bytes.size() || to.empty())
    return invalid_argument(fmt::format("state '{}' has {} bytes, not {}", name, bytes.size(), to.size()));
  std::memcpy(to.data(), bytes.data(), bytes.size());
  return ok();
}

Status Model::set_state(std::string_view name, std::span<const std::byte> bytes) {
  const std::span<std::byte> to = state_bytes(name);
  if (to.size() != bytes.size() || to.empty())
    return invalid_argument(fmt::format("state '{}' has {} bytes, not {}", name, to.size(), bytes.size()));
  std::memcpy(to.data(), bytes.data(), bytes.size());
  return ok();
}

}  // namespace glim
