#pragma once
// What linear_cross_entropy, its vjp and the node that joins both share: the chunked CPU kernel, type checks, costs and cases.
#include "ops/cross_entropy/rows.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

namespace glim::ops {

inline constexpr AttrSpec kHeadAttrs[] = {real_attr("multiplier", 1, "factor of the logits"),
                                          real_attr("softcap", 0, "bound of the logits after the multiplier, 0 = none"),
                                          integer_attr("ignore_index", -100, "label of a row without a target"),
                                          enum_attr("reduction", 0, kReductionNames, "loss: mean over the denominator, or sum"),
                                          integer_attr("chunk_rows", 2048, "rows of logits that are held at once"),
                                          bool_attr("input_gradient", true, "ct_in is an output"),
                                          bool_attr("weight_gradient", true, "ct_weight is an output"),
                                          bool_attr("wide_weight_gradient", false, "ct_weight has the accumulation type")};
inline constexpr size_t kNumForwardAttrs = 5;

// in [T, D] and weight [V, D] of one floating-point type, labels and denominator of cross_entropy, attributes in their ranges.
Status check_head(const TensorType& in, const TensorType& weight, const TensorType& labels, const TensorType* denominator,
                  const LinearCrossEntropyAttrs& attrs);
// The types of the gradients that are asked for.
Types gradient_types(const TensorType& in, const TensorType& weight, const LinearCrossEntropyVjpAttrs& attrs);
// `num_products` products of T x D x V each, and the chunk of logits.
Cost head_cost(const CostArgs& a, int64_t chunk_rows, int num_products);

// One pass over the chunks. Absent views switch parts off.
struct HeadPass {
  LinearCrossEntropyAttrs attrs;
  TensorView in, weight, labels, denominator;
  std::span<const TensorView> statistics{};  // the seven outputs of the forward op; empty: row_lse and num_valid are given
  TensorView row_lse{};                      // saved, when `statistics` is empty
  int64_t num_valid = 0;                     // likewise
  TensorView ct_loss{}, ct_row_loss{};
  TensorView ct_in{}, ct_weight{};  // outputs
  TensorView weight_accumulator{};  // what ct_weight starts from
};
void run_head(const HeadPass& pass, std::span<std::byte> workspace, KernelContext& context);

// Composes softcap(multiplier * in * weight^T) from plain ops, in the accumulation type.
ValueId plain_logits(Graph& g, ValueId in, ValueId weight, const LinearCrossEntropyAttrs& attrs);

// Test cases: chunk sizes, caps, multipliers and labels; head_inputs are in, weight, labels and denominator.
struct HeadCase {
  std::string name;
  LinearCrossEntropyAttrs attrs;
  bool denominator, all_ignored;
};
std::vector<HeadCase> head_cases();
std::vector<CaseInput> head_inputs(const HeadCase& c);

}  // namespace glim::ops
