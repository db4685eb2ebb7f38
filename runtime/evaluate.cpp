#include "runtime/evaluate.h"

#include <algorithm>

namespace glim {

Result<BatchCounts> read_counts(const Model& model, ProgramKind kind) {
  GLIM_ASSIGN(const double loss, model.scalar(kind, "loss"));
  GLIM_ASSIGN(const double num_correct, model.scalar(kind, "num_correct"));
  GLIM_ASSIGN(const double num_valid, model.scalar(kind, "num_valid"));
  return BatchCounts{loss, static_cast<int64_t>(num_correct), static_cast<int64_t>(num_valid)};
}

Status set_batch(Model& model, const TokenBatch& batch) {
  GLIM_TRY(model.set_input("tokens", batch.tokens));
  const auto is_positions = [](const ModelInput& input) { return input.name == "positions"; };
  // A model without rotary embeddings has no use for them.
  if (std::ranges::any_of(model.compiled().inputs, is_positions)) GLIM_TRY(model.set_input("positions", batch.positions));
  GLIM_TRY(model.set_input("targets", batch.targets));
  return model.set_input("segments", batch.segments);
}

Result<Evaluation> evaluate(Model& model, int64_t num_rows, const std::function<TokenBatch(int64_t row)>& batch_of) {
  Evaluation evaluation;
  GLIM_TRY(model.set_scalar("denominator", 1.0));  // losses come out as sums
  for (int64_t row = 0; row < num_rows; ++row) {
    GLIM_TRY(set_batch(model, batch_of(row)));
    GLIM_TRY(model.run(ProgramKind::kForward));
    GLIM_ASSIGN(const BatchCounts counts, read_counts(model, ProgramKind::kForward));
    evaluation.loss += counts.loss;
    evaluation.num_correct += counts.num_correct;
    evaluation.num_valid += counts.num_valid;
  }
  if (evaluation.num_valid == 0) return evaluation;
  evaluation.loss /= static_cast<double>(evaluation.num_valid);
  evaluation.token_accuracy = static_cast<double>(evaluation.num_correct) / static_cast<double>(evaluation.num_valid);
  return evaluation;
}

}  // namespace glim
