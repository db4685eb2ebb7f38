#pragma once
// Loss and token accuracy of a model over packed rows of text.
#include <functional>

#include "runtime/data/training_data.h"
#include "runtime/model.h"

namespace glim {

struct Evaluation {
  double loss = 0, token_accuracy = 0;  // over all valid targets together; 0 when there are none
  int64_t num_valid = 0, num_correct = 0;
};

// What a program with the training outputs says of its batch.
struct BatchCounts {
  double loss = 0;
  int64_t num_correct = 0, num_valid = 0;
};
Result<BatchCounts> read_counts(const Model& model, ProgramKind kind);

// Sets tokens, positions, targets and segments.
Status set_batch(Model& model, const TokenBatch& batch);

// Runs the kForward program, compiled with the input `denominator`, on rows 0 to num_rows - 1.
Result<Evaluation> evaluate(Model& model, int64_t num_rows, const std::function<TokenBatch(int64_t row)>& batch_of);

}  // namespace glim
