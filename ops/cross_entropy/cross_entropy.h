#pragma once
#include "ops/cross_entropy/cross_entropy_attrs.h"
#include "ops/define.h"

namespace glim::ops {

struct CrossEntropy {
  ValueId loss, token_accuracy, num_correct, num_valid, row_loss, row_prediction, row_lse;
};
inline CrossEntropy cross_entropy_outputs(const Graph& g, NodeId n) {
  return {g.output(n, kLoss),    g.output(n, kTokenAccuracy), g.output(n, kNumCorrect), g.output(n, kNumValid),
          g.output(n, kRowLoss), g.output(n, kRowPrediction), g.output(n, kRowLse)};
}

// logits [T, V], labels i32[T] (shifted already; ignore_index = no target), denominator acc[1] or none (num_valid).
inline CrossEntropy cross_entropy(Graph& g, ValueId logits, ValueId labels, ValueId denominator = {},
                                  const CrossEntropyAttrs& attrs = kCrossEntropyDefaults) {
  return cross_entropy_outputs(g, emit(g, "cross_entropy", {logits, labels, denominator}, attrs));
}

}  // namespace glim::ops

namespace glim::cuda {
void cross_entropy(const KernelArgs& k);
void cross_entropy_vjp(const KernelArgs& k);
}  // namespace glim::cuda
