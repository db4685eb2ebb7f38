#pragma once
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/linear_cross_entropy/linear_cross_entropy_attrs.h"

namespace glim::ops {

// cross_entropy of softcap(multiplier * in [T, D] * weight^T [D, V]), without ever holding more than chunk_rows rows of logits.
// Outputs, labels and denominator: see cross_entropy.h.
inline CrossEntropy linear_cross_entropy(Graph& g, ValueId in, ValueId weight, ValueId labels, ValueId denominator = {},
                                         const LinearCrossEntropyAttrs& attrs = kLinearCrossEntropyDefaults) {
  return cross_entropy_outputs(g, emit(g, "linear_cross_entropy", {in, weight, labels, denominator}, attrs));
}

struct HeadGradients {
  ValueId ct_in, ct_weight;  // invalid where not asked for
};
inline HeadGradients head_gradients(const Graph& g, NodeId n, const LinearCrossEntropyVjpAttrs& attrs, int first) {
  const auto at = [&](int output) { return output < 0 ? ValueId{} : g.output(n, static_cast<uint32_t>(output)); };
  return {at(ct_in_output(attrs, first)), at(ct_weight_output(attrs, first))};
}

// The gradients from the saved num_valid and row_lse; the logits of each chunk are computed again.
inline HeadGradients linear_cross_entropy_vjp(Graph& g, ValueId in, ValueId weight, ValueId labels, ValueId denominator, ValueId num_valid,
                                              ValueId row_lse, ValueId ct_loss, ValueId ct_row_loss,
                                              const LinearCrossEntropyVjpAttrs& attrs) {
  return head_gradients(
      g, emit(g, "linear_cross_entropy_vjp", {in, weight, labels, denominator, num_valid, row_lse, ct_loss, ct_row_loss}, attrs), attrs, 0);
}

// Loss and gradients from one pass over the logits. `weight_accumulator` has the type of ct_weight, which takes over its buffer.
inline std::pair<CrossEntropy, HeadGradients> linear_cross_entropy_grad(Graph& g, ValueId in, ValueId weight, ValueId labels,
                                                                        ValueId denominator, ValueId ct_loss, ValueId weight_accumulator,
                                                                        const LinearCrossEntropyVjpAttrs& attrs) {
  const NodeId n = emit(g, "linear_cross_entropy_grad", {in, weight, labels, denominator, ct_loss, weight_accumulator}, attrs);
  return {cross_entropy_outputs(g, n), head_gradients(g, n, attrs, kNumCrossEntropyOutputs)};
}

}  // namespace glim::ops

namespace glim::cuda {
void linear_cross_entropy(const KernelArgs& k);
void linear_cross_entropy_vjp(const KernelArgs& k);
void linear_cross_entropy_grad(const KernelArgs& k);
}  // namespace glim::cuda
