#include "runtime/trainer.h"

#include <fmt/format.h>

#include <chrono>

#include "engine/print.h"
#include "models/hf_config.h"
#include "ops/builtin_ops.h"
#include "runtime/checksum.h"
#include "runtime/non_finite.h"
#include "runtime/step_trace.h"
#include "runtime/weights.h"

namespace glim {

double count_flops(const Graph& graph) {
  double flops = 0;
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) flops += graph.cost({n}).flops;
  return flops;
}

Result<TrainingSetup> prepare_training(const TrainConfig& config) {
  TrainingSetup setup;
  setup.config = config;
  GLIM_ASSIGN(setup.source, open_model(config.model, config.set, config.weights));
  const ModelSpec& spec = setup.source.spec;
  GLIM_ASSIGN(const Vocabulary vocabulary, vocabulary_of(spec));
  GLIM_ASSIGN(TrainingData data,
              TrainingData::load(config.data, {config.tokens, config.seed, static_cast<int>(config.micro_steps)}, vocabulary));
  setup.data = std::make_unique<TrainingData>(std::move(data));
  CompileOptions options;
  options.real = config.dtype;
  options.runtime_dims = {{"T", config.tokens}, {"G", setup.data->max_segments()}};
  options.optional_inputs = {"denominator"};
  options.programs = {ProgramKind::kForward, ProgramKind::kFirst, ProgramKind::kUpdate};
  if (config.micro_steps > 1) options.programs.push_back(ProgramKind::kNext);
  options.adamw = config.adamw;
  options.passes.rematerialise = config.rematerialise;
  GLIM_ASSIGN(setup.compiled, compile(spec, builtin_ops(), options));
  setup.micro_step_flops = count_flops(setup.compiled.find(ProgramKind::kFirst)->graph);
  setup.update_flops = count_flops(setup.compiled.find(ProgramKind::kUpdate)->graph);
  options.driver.stop_after = "build";
  BuiltModel facts{Graph(builtin_ops()), {}, {}, {}};
  GLIM_ASSIGN(const Graph as_written, lower(spec, builtin_ops(), options, ProgramKind::kForward, facts));
  Checksum checksum;
  checksum.add(print(as_written));
  setup.graph_digest = checksum.digest().xxh3;
  return setup;
}

Result<Trainer> Trainer::create(const TrainConfig& config) {
  GLIM_ASSIGN(TrainingSetup setup, prepare_training(config));
  return create(std::move(setup));
}

Result<Trainer> Trainer::create(TrainingSetup setup) {
  Trainer trainer;
  trainer.setup_ = std::make_unique<TrainingSetup>(std::move(setup));
  GLIM_ASSIGN(Model model, Model::create(std::move(trainer.setup_->compiled), 0, trainer.config().backend,
                                         trainer.config().strict ? ProductAlgorithms::kFixed : ProductAlgorithms::kTimed));
  trainer.model_ = std::make_unique<Model>(std::move(model));
  const ModelSource& source = trainer.setup_->source;
  if (source.checkpoint) {
    GLIM_TRY(load_weights(*trainer.model_, *source.checkpoint, source.spec.hf.ignore_tensors));
  } else {
    GLIM_TRY(trainer.model_->initialise(trainer.config().seed));
  }
  return trainer;
}

void Trainer::set_position(int64_t steps_done, int64_t skipped_in_a_row) {
  steps_done_ = steps_done;
  skipped_in_a_row_ = skipped_in_a_row;
}

Result<StepMetrics> Trainer::step(StepTrace* trace) {
  const auto run = [&](ProgramKind kind) { return trace != nullptr ? trace->run(*model_, kind) : model_->run(kind); };
  const auto start = std::chrono::steady_clock::now();
  const TrainingData& data = *setup_->data;
  StepMetrics metrics;
  metrics.step = steps_done_ + 1;
  metrics.learning_rate = learning_rate_at(config(), steps_done_);
  GLIM_TRY(model_->set_scalar("denominator", static_cast<double>(data.step_num_valid(steps_done_))));
  GLIM_TRY(model_->set_scalar(kLearningRateName, metrics.learning_rate));
  for (int micro_step = 0; micro_step < config().micro_steps; ++micro_step) {
    const TokenBatch batch = data.batch(steps_done_, micro_step);
    metrics.num_tokens += batch.num_tokens;
    GLIM_TRY(set_batch(*model_, batch));
    const ProgramKind kind = micro_step == 0 ? ProgramKind::kFirst : ProgramKind::kNext;
    GLIM_TRY(run(kind));
    GLIM_ASSIGN(const BatchCounts counts, read_counts(*model_, kind));
    metrics.loss += counts.loss;
    metrics.num_correct += counts.num_correct;
    metrics.num_valid += counts.num_valid;
  }
  GLIM_TRY(run(ProgramKind::kUpdate));
  if (metrics.num_valid > 0) metrics.token_accuracy = static_cast<double>(metrics.num_correct) / static_cast<double>(metrics.num_valid);
  GLIM_ASSIGN(metrics.gradient_norm, model_->scalar(ProgramKind::kUpdate, "gradient_norm"));
  GLIM_ASSIGN(const double is_finite, model_->scalar(ProgramKind::kUpdate, "finite"));
  metrics.skipped = is_finite == 0;
  metrics.flops = setup_->micro_step_flops * static_cast<double>(config().micro_steps) + setup_->update_flops;
  metrics.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  skipped_in_a_row_ = metrics.skipped ? skipped_in_a_row_ + 1 : 0;
  if (skipped_in_a_row_ >= kMaxSkipped) return give_up();
  ++steps_done_;
  return metrics;
}

// Runs the step again, whose skipped update has changed nothing, and looks at every node's outputs on the way.
Result<StepMetrics> Trainer::give_up() {
  std::optional<std::string> culprit = find_non_finite_parameter(*model_);
  for (int micro_step = 0; micro_step < config().micro_steps && !culprit; ++micro_step) {
    GLIM_TRY(set_batch(*model_, setup_->data->batch(steps_done_, micro_step)));
    GLIM_ASSIGN(culprit, find_non_finite_node(*model_, micro_step == 0 ? ProgramKind::kFirst : ProgramKind::kNext));
    if (culprit && config().micro_steps > 1) *culprit += fmt::format(", in micro-step {}", micro_step);
  }
  if (!culprit) {
    GLIM_ASSIGN(culprit, find_non_finite_node(*model_, ProgramKind::kUpdate));
  }
  return Error{ErrorCode::kNumeric, fmt::format("the gradients of {} steps in a row, up to step {}, were not finite; first not finite: {}",
                                                kMaxSkipped, steps_done_ + 1, culprit.value_or("nothing, when the step ran again"))};
}

Result<Evaluation> Trainer::validate(int64_t max_rows) {
  const TrainingData& data = *setup_->data;
  const int64_t rows = max_rows > 0 ? std::min(max_rows, data.num_validation_rows()) : data.num_validation_rows();
  return evaluate(*model_, rows, [&](int64_t row) { return data.validation_batch(row); });
}

Status Trainer::save(const std::string& folder) {
  GLIM_ASSIGN(const std::string config_json, checkpoint_config(setup_->source.spec, config().dtype));
  return save_weights(*model_, folder, config_json);
}

}  // namespace glim
