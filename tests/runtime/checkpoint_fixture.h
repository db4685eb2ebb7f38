#pragma once
// A small model in training, and what tests of checkpoints ask of it.
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "models/hf_config.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/manifest.h"
#include "tests/runtime/small_model.h"

namespace glim {

// Memory if the machine offers it as a folder: what these tests do, they do hundreds of times, and each time it is synced.
inline std::filesystem::path fast_parent() {
  return ::access("/dev/shm", W_OK) == 0 ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
}

using States = std::map<std::string, std::vector<std::byte>>;  // state name -> its bytes

class TrainedModel {
 public:
  explicit TrainedModel(DType real = DType::kF32, const std::vector<std::string>& settings = {}, int threads = 1)
      : spec_(small_spec(settings)), model_(make(spec_, real, threads)) {
    EXPECT_TRUE(model_.initialise(3));
    (void)model_.set_scalar(kLearningRateName, 1e-2);
  }

  // One optimizer step on tokens that are a function of `step`.
  void train(int64_t step) {
    const std::vector<int32_t> tokens = random_tokens(16, 37, static_cast<uint64_t>(step));
    EXPECT_TRUE(model_.set_inputs({{"tokens", tokens}, {"labels", tokens}, {"row_lengths", {16}}}));
    for (const ProgramKind kind : {ProgramKind::kFirst, ProgramKind::kUpdate}) EXPECT_TRUE(model_.run(kind));
    EXPECT_EQ(*model_.scalar(ProgramKind::kUpdate, "finite"), 1);
  }
  // Sets all state to bits that are a function of `step`.
  void fill(int64_t step) {
    for (const auto& [name, bytes] : expected_fill(step)) EXPECT_TRUE(model_.set_state(name, bytes));
  }
  [[nodiscard]] States expected_fill(int64_t step) const {
    States states = read();
    for (auto& [name, bytes] : states) {
      const uint64_t stream = make_stream(static_cast<uint64_t>(step), name);
      for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
        const uint64_t bits = mix_bits(stream + i);
        std::memcpy(bytes.data() + i, &bits, std::min(sizeof bits, bytes.size() - i));
      }
    }
    return states;
  }
  // Parameters, master weights, moments and step count: everything but gradients and inputs.
  [[nodiscard]] States read() const {
    States states;
    for (const auto& [name, slot] : model_.compiled().layout.slots()) {
      if (slot.arena == Arena::kParameters || slot.arena == Arena::kOptimizer) states[name] = model_.state(name)->bytes;
    }
    return states;
  }
  void clear() {
    for (const auto& [name, bytes] : read()) EXPECT_TRUE(model_.set_state(name, std::vector<std::byte>(bytes.size(), std::byte{0xff})));
  }
  [[nodiscard]] TrainingState state(int64_t step) const {
    TrainingState state;
    state.step = step;
    state.skipped_in_a_row = step % 3;
    state.identity = {{"train.tokens", "16"}, {"train.seed", "1"}, {"model", "small"}};
    state.choices = {{"matrix_products", "eigen 3.4.0 avx2"}};
    if (step % 2 == 1) state.algorithms = {{"bf16 8x8x8", "42"}};
    state.configuration = "[train]\ntokens = 16\n# step " + std::to_string(step) + "\n";
    Result<std::string> config = hf_config_from_spec(spec_, DType::kF32);
    EXPECT_TRUE(config);
    state.hf_config = *config;
    return state;
  }
  Model& model() { return model_; }
  [[nodiscard]] const ModelSpec& spec() const { return spec_; }

 private:
  static Model make(const ModelSpec& spec, DType real, int threads) {
    CompileOptions options;
    options.real = real;
    options.runtime_dims = {{"T", 16}, {"G", 1}, {"R", 1}};
    options.programs = {ProgramKind::kForward, ProgramKind::kFirst, ProgramKind::kUpdate};
    Result<CompiledModel> compiled = compile(spec, builtin_ops(), options);
    if (!compiled) throw std::runtime_error(compiled.error().to_string());
    Result<Model> model = Model::create(std::move(*compiled), threads);
    if (!model) throw std::runtime_error(model.error().to_string());
    return std::move(*model);
  }

  ModelSpec spec_;
  Model model_;
};

inline std::unique_ptr<CheckpointFolder> open_folder(const std::string& path, const Retention& retention = {}) {
  Result<std::unique_ptr<CheckpointFolder>> folder = CheckpointFolder::open(path, retention);
  if (!folder) throw std::runtime_error(folder.error().to_string());
  return std::move(*folder);
}
// Saves and waits.
inline Status save_now(CheckpointFolder& folder, TrainedModel& trained, int64_t step) {
  GLIM_TRY(folder.save(trained.model(), trained.state(step)));
  return folder.wait();
}
inline std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace glim
