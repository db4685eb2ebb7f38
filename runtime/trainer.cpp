#include "runtime/trainer.h"

#include <fmt/format.h>

#include <chrono>

#include "models/hf_config.h"
#include "ops/builtin_ops.h"
#include "runtime/weights.h"

namespace glim {

double count_flops(const Graph& graph) {
  double flops = 0;
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) flops += graph.cost({n}).flops;
  return flops;
}

Result<Trainer> Trainer::create(const TrainConfig& config) {
  Trainer trainer;
  trainer.config_ = config;
  GLIM_ASSIGN(ModelSource source, open_model(config.model, config.set, config.weights));
  trainer.source_ = std::make_unique<ModelSource>(std::move(source));
  const ModelSpec& spec = trainer.source_->spec;
  if (spec.vocabulary != "bytes") {
    return invalid_argument(
        fmt::format("{} does not say [vocabulary] kind = \"bytes\": text is read byte by byte, so token i must be byte i", spec.file));
  }
  GLIM_ASSIGN(TextData data,
              TextData::load(config.text, {config.tokens, config.seed, static_cast<int>(config.micro_steps), config.validation_fraction}));
  trainer.data_ = std::make_unique<TextData>(std::move(data));
  CompileOptions options;
  options.real = config.dtype;
  options.runtime_dims = {{"T", config.tokens}, {"G", trainer.data_->max_segments()}};
  options.optional_inputs = {"denominator"};
  options.programs = {ProgramKind::kForward, ProgramKind::kFirst, ProgramKind::kUpdate};
  if (config.micro_steps > 1) options.programs.push_back(ProgramKind::kNext);
  options.adamw = config.adamw;
  options.passes.rematerialise = config.rematerialise;
  GLIM_ASSIGN(CompiledModel compiled, compile(spec, builtin_ops(), options));
  trainer.micro_step_flops_ = count_flops(compiled.find(ProgramKind::kFirst)->graph);
  trainer.update_flops_ = count_flops(compiled.find(ProgramKind::kUpdate)->graph);
  GLIM_ASSIGN(Model model, Model::create(std::move(compiled), 0, config.backend));
  trainer.model_ = std::make_unique<Model>(std::move(model));
  if (trainer.source_->checkpoint) {
    GLIM_TRY(load_weights(*trainer.model_, *trainer.source_->checkpoint, spec.hf.ignore_tensors));
  } else {
    GLIM_TRY(trainer.model_->initialise(config.seed));
  }
  return trainer;
}

Result<StepMetrics> Trainer::step() {
  const auto start = std::chrono::steady_clock::now();
  StepMetrics metrics;
  metrics.step = steps_done_ + 1;
  metrics.learning_rate = learning_rate_at(config_, steps_done_);
  GLIM_TRY(model_->set_scalar("denominator", static_cast<double>(data_->step_num_valid(steps_done_))));
  GLIM_TRY(model_->set_scalar(kLearningRateName, metrics.learning_rate));
  int64_t num_correct = 0;
  for (int micro_step = 0; micro_step < config_.micro_steps; ++micro_step) {
    const TextBatch batch = data_->batch(steps_done_, micro_step);
    metrics.num_tokens += batch.num_tokens;
    GLIM_TRY(set_text_batch(*model_, batch));
    const ProgramKind kind = micro_step == 0 ? ProgramKind::kFirst : ProgramKind::kNext;
    GLIM_TRY(model_->run(kind));
    metrics.loss += model_->scalar(kind, "loss");
    num_correct += static_cast<int64_t>(model_->scalar(kind, "num_correct"));
    metrics.num_valid += static_cast<int64_t>(model_->scalar(kind, "num_valid"));
  }
  GLIM_TRY(model_->run(ProgramKind::kUpdate));
  metrics.token_accuracy = metrics.num_valid == 0 ? 0 : static_cast<double>(num_correct) / static_cast<double>(metrics.num_valid);
  metrics.gradient_norm = model_->scalar(ProgramKind::kUpdate, "gradient_norm");
  metrics.skipped = model_->scalar(ProgramKind::kUpdate, "finite") == 0;
  metrics.flops = micro_step_flops_ * static_cast<double>(config_.micro_steps) + update_flops_;
  metrics.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ++steps_done_;
  skipped_in_a_row_ = metrics.skipped ? skipped_in_a_row_ + 1 : 0;
  if (skipped_in_a_row_ >= kMaxSkipped) {
    return Error{ErrorCode::kNumeric,
                 fmt::format("the gradients of {} steps in a row, up to step {}, were not finite", kMaxSkipped, steps_done_)};
  }
  return metrics;
}

Result<Evaluation> Trainer::validate(int64_t max_rows) {
  const int64_t rows = max_rows > 0 ? std::min(max_rows, data_->num_validation_rows()) : data_->num_validation_rows();
  return evaluate(*model_, rows, [&](int64_t row) { return data_->validation_batch(row); });
}

Status Trainer::save(const std::string& folder) {
  GLIM_ASSIGN(const std::string config_json, hf_config_from_spec(source_->spec, config_.dtype));
  return save_weights(*model_, folder, config_json);
}

}  // namespace glim
