#include "runtime/evaluate.h"

#include <algorithm>

namespace glim {

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
    evaluation.loss += model.scalar(ProgramKind::kForward, "loss");
    evaluation.num_correct += static_cast<int64_t>(model.scalar(ProgramKind::kForward, "num_correct"));
    evaluation.num_valid += static_cast<int64_t>(model.scalar(ProgramKind::kForward, "num_valid"));
  }
  if (evaluation.num_valid == 0) return evaluation;
  evaluation.loss /= static_cast<double>(evaluation.num_valid);
  evaluation.token_accuracy = static_cast<double>(evaluation.num_correct) / static_cast<double>(evaluation.num_valid);
  return evaluation;
}

}  // namespace glim
