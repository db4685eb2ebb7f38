#pragma once
// What a public Model holds. Its functions speak the engine's Result; api/model.cpp converts.
#include <atomic>
#include <list>

#include "models/derived.h"
#include "runtime/api/boundary.h"
#include "runtime/api/registered_op.h"
#include "runtime/model.h"
#include "runtime/model_source.h"

namespace glim::v0 {

class ModelImpl {
 public:
  // Opens the source, compiles every program, allocates, and fills the parameters.
  static glim::Result<std::unique_ptr<ModelImpl>> create(const LoadOptions& options,
                                                         const std::function<glim::Result<ModelSource>()>& open_source);

  [[nodiscard]] std::vector<InputInfo> inputs() const;
  [[nodiscard]] std::vector<OutputInfo> outputs() const;
  [[nodiscard]] std::vector<ParameterInfo> parameters() const;

  // parameters.cpp
  void initialise(uint64_t seed);
  glim::Status load_weights(const std::string& path);
  [[nodiscard]] glim::Result<Tensor> parameter(std::string_view name) const;
  glim::Status set_parameter(std::string_view name, const Tensor& value);
  void reset_optimizer() { model_->reset_optimizer(); }
  [[nodiscard]] glim::Status save(const std::string& folder) const;
  [[nodiscard]] glim::Result<Tensor> gradient(std::string_view name) const;

  // steps.cpp
  glim::Status forward(const Batch& batch);
  [[nodiscard]] glim::Result<Tensor> output(std::string_view name) const;
  [[nodiscard]] glim::Result<double> scalar(std::string_view name) const;
  glim::Result<Metrics> evaluate(std::span<const Batch> batches);
  glim::Result<Metrics> compute_gradients(std::span<const Batch> batches, std::string_view stage);
  glim::Result<StepResult> train_step(std::span<const Batch> batches, double learning_rate);

  // generation.cpp
  glim::Result<std::vector<int32_t>> generate(std::span<const int32_t> prompt, int64_t num_tokens, const Sampling& sampling,
                                              const std::function<void(int32_t)>& on_token);

  std::atomic<bool> cancelled{false};

 private:
  // inputs.cpp: what a program is given
  glim::Result<HostValues> host_values(const Batch& batch, ProgramKind kind) const;
  [[nodiscard]] std::optional<int64_t> count_targets(const HostValues& values) const;  // nothing: the model has no targets
  glim::Status give(const Batch& batch, HostValues values, ProgramKind kind);
  glim::Status set_reals(const Batch& batch, ProgramKind kind);

  glim::Result<CompiledModel> compile(const CompileOptions& options);
  [[nodiscard]] CompileOptions compile_options() const;
  glim::Result<const ModelParameter*> find_parameter(std::string_view name) const;
  glim::Status prepare_generation(int64_t length);
  [[nodiscard]] bool has_output(std::string_view name) const;  // of the model file, and not per layer
  [[nodiscard]] bool has_denominator() const;
  void log(LogLevel level, const std::string& line) const;
  void progress(std::string_view stage, int64_t done, size_t total) const;

  LoadOptions options_;
  OpTable table_{};
  std::list<RegisteredOp> registered_;
  std::optional<glim::Error> op_failure_;
  ModelSource source_;
  std::unique_ptr<glim::Model> model_;
  bool has_run_ = false, has_gradients_ = false;  // forward() and compute_gradients()

  // A second compilation for generation: one document, its last row's logits. It has a copy of the parameters, renewed when they changed.
  std::unique_ptr<glim::Model> generator_;
  int64_t generator_length_ = 0;
  uint64_t parameters_version_ = 1, generator_version_ = 0;
};

}  // namespace glim::v0
