// Running the programs: forward, evaluation, gradients, the optimizer.
#include <fmt/format.h>

#include <cmath>

#include "runtime/api/model_impl.h"
#include "runtime/backend.h"
#include "runtime/evaluate.h"

namespace glim::v0 {

bool ModelImpl::has_denominator() const { return model_->compiled().layout.find("denominator") != nullptr; }

glim::Status ModelImpl::forward(const Batch& batch) {
  GLIM_ASSIGN(HostValues values, host_values(batch, ProgramKind::kForward));
  if (has_denominator()) GLIM_TRY(model_->set_scalar("denominator", static_cast<double>(count_targets(values).value_or(1))));
  GLIM_TRY(give(batch, std::move(values), ProgramKind::kForward));
  has_run_ = false;
  GLIM_TRY(model_->run(ProgramKind::kForward));
  has_run_ = true;
  return ok();
}

glim::Result<Tensor> ModelImpl::output(std::string_view name) const {
  if (!has_run_) return invalid_argument("there are no outputs: forward() has not run since load or the last training step");
  GLIM_ASSIGN(HostTensor tensor, model_->output(ProgramKind::kForward, name));
  return Tensor{to_public(tensor.type), std::move(tensor.bytes)};
}

glim::Result<double> ModelImpl::scalar(std::string_view name) const {
  GLIM_ASSIGN(const Tensor tensor, output(name));
  if (tensor.type.num_elements() != 1)
    return invalid_argument(fmt::format("output '{}' has {} elements: read it with output()", name, tensor.type.num_elements()));
  return tensor.at(0);
}

namespace {
void finish(Metrics& metrics) {
  metrics.token_accuracy = metrics.num_valid == 0 ? 0 : static_cast<double>(metrics.num_correct) / static_cast<double>(metrics.num_valid);
}
}  // namespace

glim::Result<Metrics> ModelImpl::evaluate(std::span<const Batch> batches) {
  for (const char* name : {"loss", "num_correct", "num_valid"}) {
    if (!has_output(name)) return invalid_argument(fmt::format("the model has no output '{}', which evaluation needs", name));
  }
  // What only other outputs read (the rows of row_logits, say) need not be given.
  const ProgramKind needs = options_.trainable ? ProgramKind::kFirst : ProgramKind::kForward;
  Metrics metrics;
  has_run_ = false;
  for (size_t k = 0; k < batches.size(); ++k) {
    GLIM_ASSIGN(HostValues values, host_values(batches[k], needs));
    if (has_denominator()) GLIM_TRY(model_->set_scalar("denominator", 1.0));  // losses come out as sums
    GLIM_TRY(give(batches[k], std::move(values), needs));
    GLIM_TRY(model_->run(ProgramKind::kForward));
    GLIM_ASSIGN(const BatchCounts counts, read_counts(*model_, ProgramKind::kForward));
    metrics.loss += counts.loss * (has_denominator() ? 1.0 : static_cast<double>(counts.num_valid));
    metrics.num_correct += counts.num_correct;
    metrics.num_valid += counts.num_valid;
    progress("evaluate", static_cast<int64_t>(k) + 1, batches.size());
  }
  if (metrics.num_valid > 0) metrics.loss /= static_cast<double>(metrics.num_valid);
  finish(metrics);
  return metrics;
}

glim::Result<Metrics> ModelImpl::compute_gradients(std::span<const Batch> batches, std::string_view stage) {
  if (!options_.trainable) return invalid_argument("the model was loaded with trainable = false");
  if (batches.empty()) return invalid_argument("a step needs at least one batch");
  std::vector<HostValues> all;  // the denominator of the first micro-step counts the targets of the last one
  int64_t num_targets = 0;
  bool has_targets = true;
  for (size_t k = 0; k < batches.size(); ++k) {
    GLIM_ASSIGN(all.emplace_back(), host_values(batches[k], k == 0 ? ProgramKind::kFirst : ProgramKind::kNext));
    const std::optional<int64_t> counted = count_targets(all.back());
    has_targets = has_targets && counted.has_value();
    num_targets += counted.value_or(0);
  }
  if (has_denominator() && has_targets) {
    GLIM_TRY(model_->set_scalar("denominator", static_cast<double>(num_targets)));
  } else if (has_denominator() || batches.size() > 1) {
    return invalid_argument(
        "several batches in one step need a model with the optional input 'denominator' and an input 'targets': the loss of each is "
        "divided by "
        "the valid targets of all");
  }
  has_run_ = has_gradients_ = false;
  Metrics metrics;
  for (size_t k = 0; k < batches.size(); ++k) {
    const ProgramKind kind = k == 0 ? ProgramKind::kFirst : ProgramKind::kNext;
    GLIM_TRY(give(batches[k], std::move(all[k]), kind));
    GLIM_TRY(model_->run(kind));
    GLIM_ASSIGN(const BatchCounts counts, read_counts(*model_, kind));
    metrics.loss += counts.loss;
    metrics.num_correct += counts.num_correct;
    metrics.num_valid += counts.num_valid;
    progress(stage, static_cast<int64_t>(k) + 1, batches.size());
  }
  has_gradients_ = true;
  finish(metrics);
  return metrics;
}

glim::Result<StepResult> ModelImpl::train_step(std::span<const Batch> batches, double learning_rate) {
  if (!std::isfinite(learning_rate) || learning_rate < 0)
    return invalid_argument(fmt::format("the learning rate must be a finite number from 0, not {}", learning_rate));
  GLIM_ASSIGN(const Metrics metrics, compute_gradients(batches, "train_step"));
  GLIM_TRY(model_->set_scalar(kLearningRateName, learning_rate));
  GLIM_TRY(model_->run(ProgramKind::kUpdate));
  ++parameters_version_;
  StepResult result{metrics};
  GLIM_ASSIGN(result.gradient_norm, model_->scalar(ProgramKind::kUpdate, "gradient_norm"));
  GLIM_ASSIGN(const double is_finite, model_->scalar(ProgramKind::kUpdate, "finite"));
  result.skipped = is_finite == 0;
  for (const std::string& line : take_backend_notes()) log(LogLevel::kInfo, line);
  if (result.skipped) log(LogLevel::kWarning, "the gradients were not finite: the step was skipped");
  return result;
}

}  // namespace glim::v0
