#include "ops/cast/cast.h"
#include "ops/linear_cross_entropy/head.h"
#include "ops/matmul/matmul.h"
#include "ops/scale/scale.h"
#include "ops/softcap/softcap.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"},        {"weight"},  {"labels"},        {"denominator", true},
                                     {"num_valid"}, {"row_lse"}, {"ct_loss", true}, {"ct_row_loss", true}};
constexpr std::string_view kOutputs[] = {"ct_in", "ct_weight"};

Result<Types> infer(const InferArgs& a) {
  const auto attrs = a.attrs<LinearCrossEntropyVjpAttrs>();
  GLIM_TRY(check_head(*a.in[0], *a.in[1], *a.in[2], a.in[3], attrs.head));
  GLIM_TRY(check_saved(*a.in[4], *a.in[5], a.in[6], a.in[7], a.in[0]->shape[0], accumulation_dtype(a.in[0]->dtype)));
  GLIM_EXPECT(attrs.input_gradient || attrs.weight_gradient, "one of input_gradient and weight_gradient must be on");
  return gradient_types(*a.in[0], *a.in[1], attrs);
}

std::vector<ValueId> decompose(Graph& g, std::span<const ValueId> in, std::span<const uint32_t> words) {
  const auto attrs = from_words<LinearCrossEntropyVjpAttrs>(words);
  const auto& head = attrs.head;
  const ValueId logits = plain_logits(g, in[0], in[1], head);
  ValueId ct = emit_value(g, "cross_entropy_vjp", {logits, in[2], in[3], in[4], in[5], in[6], in[7]},
                          CrossEntropyAttrs{head.ignore_index, head.reduction, head.chunk_rows});
  if (head.softcap > 0) ct = emit_value(g, "softcap_vjp", {logits, ct}, SoftcapAttrs{head.softcap});
  if (head.multiplier != 1) ct = scale(g, ct, head.multiplier);
  ct = cast(g, ct, g.type(in[0]).dtype);
  std::vector<ValueId> out;
  if (attrs.input_gradient) out.push_back(matmul(g, ct, in[1]));
  if (attrs.weight_gradient) out.push_back(matmul(g, ct, in[0], {true, false, attrs.wide_weight_gradient}));
  return out;
}

void cpu(const KernelArgs& k) {
  const auto attrs = k.attrs<LinearCrossEntropyVjpAttrs>();
  HeadPass pass{.attrs = attrs.head, .in = k.in[0], .weight = k.in[1], .labels = k.in[2], .denominator = k.in[3]};
  pass.num_valid = *k.in[4].as<int64_t>();
  pass.row_lse = k.in[5];
  pass.ct_loss = k.in[6];
  pass.ct_row_loss = k.in[7];
  if (attrs.input_gradient) pass.ct_in = k.out[static_cast<size_t>(ct_in_output(attrs, 0))];
  if (attrs.weight_gradient) pass.ct_weight = k.out[static_cast<size_t>(ct_weight_output(attrs, 0))];
  run_head(pass, k.workspace, k.context);
}

Cost cost(const CostArgs& a) {
  const auto attrs = a.attrs<LinearCrossEntropyVjpAttrs>();
  return head_cost(a, attrs.head.chunk_rows, 1 + (attrs.input_gradient ? 1 : 0) + (attrs.weight_gradient ? 1 : 0));
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  const auto add = [&](std::string name, const HeadCase& c, bool loss, bool rows, LinearCrossEntropyVjpAttrs attrs) {
    std::vector<CaseInput> in = head_inputs(c);
    const int64_t num_rows = in[0].shape[0];
    in.push_back({{1}, Fill::kOne, CaseDType::kI64});
    in.push_back({{num_rows}, Fill::kPositive, CaseDType::kAccumulation});
    in.push_back({{1}, loss ? Fill::kPositive : Fill::kAbsent, CaseDType::kAccumulation});
    in.push_back({{num_rows}, rows ? Fill::kNormal : Fill::kAbsent, CaseDType::kAccumulation});
    all.push_back({std::move(name), std::move(in), to_words(attrs)});
  };
  for (const HeadCase& c : head_cases()) add(c.name, c, true, false, {c.attrs, true, true, false});
  const HeadCase c = head_cases()[1];
  add("per-row cotangents", c, true, true, {c.attrs, true, true, false});
  add("per-row cotangents only, wide", c, false, true, {c.attrs, true, true, true});
  add("frozen weight", c, true, false, {c.attrs, true, false, false});
  add("weight only", c, true, false, {c.attrs, false, true, true});
  return all;
}

}  // namespace

extern const OpDef kLinearCrossEntropyVjp;
constexpr OpDef kLinearCrossEntropyVjp{.name = "linear_cross_entropy_vjp",
                                       .summary = "ct_in and ct_weight of linear_cross_entropy, recomputing each chunk of logits",
                                       .operands = kOperands,
                                       .outputs = kOutputs,
                                       .attrs = kHeadAttrs,
                                       .diff = Diff::kNoVjp,
                                       .infer = infer,
                                       .decompose = decompose,
                                       .cpu = cpu,
                                       .cuda = GLIM_CUDA_KERNEL(cuda::linear_cross_entropy_vjp),
                                       .cost = cost,
                                       .memory = {no_alias},
                                       .precision = Precision::kAccumulates,
                                       .shard = Shard::kVocabulary,
                                       .cases = cases};
static_assert(complete(kLinearCrossEntropyVjp));

}  // namespace glim::ops
