#pragma once
#include <string_view>

#include "ops/define.h"

namespace glim::ops {

enum class Reduction : int64_t { kMean, kSum };
inline constexpr std::string_view kReductionNames[] = {"mean", "sum"};

struct CrossEntropyAttrs {
  int64_t ignore_index;
  Reduction reduction;
  int64_t chunk_rows;  // only used by linear_cross_entropy, which the chain that ends in this op may become
};
inline constexpr CrossEntropyAttrs kCrossEntropyDefaults{-100, Reduction::kMean, 1024};

// The outputs of cross_entropy, linear_cross_entropy and (its first seven) linear_cross_entropy_grad. "acc" is the accumulation type.
// Ignored rows have row_loss 0, row_prediction -1 and row_lse 0.
enum CrossEntropyOutput : uint16_t {
  kLoss,            // acc[1]: sum of row_loss, for kMean over the denominator (0 when that is 0)
  kTokenAccuracy,   // acc[1]: num_correct / num_valid, 0 without valid rows
  kNumCorrect,      // i64[1]
  kNumValid,        // i64[1]: rows whose label is not ignore_index
  kRowLoss,         // acc[T]: -log softmax(logits)[label]
  kRowPrediction,   // i32[T]: argmax, the lowest index on a tie
  kRowLse,          // acc[T]: log of the sum of exp(logits); a saved primal, no cotangent flows into it
  kNumCrossEntropyOutputs,
};

struct CrossEntropy {
  ValueId loss, token_accuracy, num_correct, num_valid, row_loss, row_prediction, row_lse;
};
inline CrossEntropy cross_entropy_outputs(const Graph& g, NodeId n) {
  return {g.output(n, kLoss),    g.output(n, kTokenAccuracy), g.output(n, kNumCorrect), g.output(n, kNumValid),
          g.output(n, kRowLoss), g.output(n, kRowPrediction), g.output(n, kRowLse)};
}

// logits [T, V], labels i32[T] (shifted already; ignore_index = no target), denominator acc[1] or none (num_valid).
inline CrossEntropy cross_entropy(Graph& g, ValueId logits, ValueId labels, ValueId denominator = {}, const CrossEntropyAttrs& attrs = kCrossEntropyDefaults) {
  return cross_entropy_outputs(g, emit(g, "cross_entropy", {logits, labels, denominator}, attrs));
}

}  // namespace glim::ops
