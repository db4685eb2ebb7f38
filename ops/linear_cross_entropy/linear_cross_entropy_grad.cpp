#include <algorithm>
#include <cstring>

#include "engine/passes/fuse.h"
#include "ops/add/add.h"
#include "ops/linear_cross_entropy/head.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}, {"weight"}, {"labels"}, {"denominator", true}, {"ct_loss"}, {"weight_accumulator", true}};
constexpr std::string_view kOutputs[] = {"loss",           "token_accuracy", "num_correct", "num_valid", "row_loss",
                                         "row_prediction", "row_lse",        "ct_in",       "ct_weight"};
constexpr uint16_t kFirst = kNumCrossEntropyOutputs;  // where the gradients begin

Result<Types> infer(const InferArgs& a) {
  const auto attrs = a.attrs<LinearCrossEntropyVjpAttrs>();
  GLIM_TRY(check_head(*a.in[0], *a.in[1], *a.in[2], a.in[3], attrs.head));
  const DType accumulation = accumulation_dtype(a.in[0]->dtype);
  const TensorType one{accumulation, {1}};
  GLIM_EXPECT(*a.in[4] == one, "ct_loss must be {}, not {}", to_string(one), to_string(*a.in[4]));
  GLIM_EXPECT(attrs.input_gradient || attrs.weight_gradient, "one of input_gradient and weight_gradient must be on");
  const Types gradients = gradient_types(*a.in[0], *a.in[1], attrs);
  if (a.in[5] != nullptr) {
    GLIM_EXPECT(attrs.weight_gradient, "weight_accumulator is there, but weight_gradient is off");
    GLIM_EXPECT(*a.in[5] == gradients.back(), "weight_accumulator must be {}, not {}", to_string(gradients.back()), to_string(*a.in[5]));
  }
  Types types = cross_entropy_types(a.in[0]->shape[0], accumulation);
  types.insert(types.end(), gradients.begin(), gradients.end());
  return types;
}

std::vector<ValueId> decompose(Graph& g, std::span<const ValueId> in, std::span<const uint32_t> words) {
  const auto attrs = from_words<LinearCrossEntropyVjpAttrs>(words);
  const CrossEntropy out = linear_cross_entropy(g, in[0], in[1], in[2], in[3], attrs.head);
  const HeadGradients ct = linear_cross_entropy_vjp(g, in[0], in[1], in[2], in[3], out.num_valid, out.row_lse, in[4], {}, attrs);
  std::vector<ValueId> all = {out.loss, out.token_accuracy, out.num_correct, out.num_valid, out.row_loss, out.row_prediction, out.row_lse};
  if (ct.ct_in.valid()) all.push_back(ct.ct_in);
  if (ct.ct_weight.valid()) all.push_back(in[5].valid() ? add(g, in[5], ct.ct_weight) : ct.ct_weight);
  return all;
}

void cpu(const KernelArgs& k) {
  const auto attrs = k.attrs<LinearCrossEntropyVjpAttrs>();
  HeadPass pass{.attrs = attrs.head, .in = k.in[0], .weight = k.in[1], .labels = k.in[2], .denominator = k.in[3]};
  pass.statistics = k.out.first(kFirst);
  pass.ct_loss = k.in[4];
  pass.weight_accumulator = k.in[5];
  if (attrs.input_gradient) pass.ct_in = k.out[static_cast<size_t>(ct_in_output(attrs, kFirst))];
  if (attrs.weight_gradient) pass.ct_weight = k.out[static_cast<size_t>(ct_weight_output(attrs, kFirst))];
  // The plan makes accumulator and output one buffer; only a caller without a plan passes two.
  if (pass.weight_accumulator.present() && pass.weight_accumulator.data != pass.ct_weight.data) {
    const size_t element = size_of(pass.ct_weight.type.dtype);
    for (int64_t i = 0; i < pass.ct_weight.type.shape[0]; ++i) {
      std::memcpy(pass.ct_weight.as<std::byte>() + static_cast<size_t>(i * pass.ct_weight.row_stride) * element,
                  pass.weight_accumulator.as<std::byte>() + static_cast<size_t>(i * pass.weight_accumulator.row_stride) * element,
                  static_cast<size_t>(pass.ct_weight.type.shape[1]) * element);
    }
  }
  run_head(pass, k.workspace, k.context);
}

Cost cost(const CostArgs& a) {
  const auto attrs = a.attrs<LinearCrossEntropyVjpAttrs>();
  return head_cost(a, attrs.head.chunk_rows, 1 + (attrs.input_gradient ? 1 : 0) + (attrs.weight_gradient ? 1 : 0));
}

AliasFact alias(const InferArgs& a, uint16_t output) {
  const bool accumulates = a.in[5] != nullptr && output == ct_weight_output(a.attrs<LinearCrossEntropyVjpAttrs>(), kFirst);
  return accumulates ? AliasFact{AliasKind::kMust, 5} : AliasFact{};
}

// linear_cross_entropy and its linear_cross_entropy_vjp -> one node, for a plain loss: its cotangent is known before the node runs.
std::optional<FusionMatch> join(const FuseArgs& f) {
  const Graph& g = f.graph;
  const std::span<const ValueId> in = g.inputs(f.root);
  const ValueId num_valid = in[4], row_lse = in[5], ct_loss = in[6], ct_row_loss = in[7];
  const NodeId forward = g.producer(row_lse);
  if (g.is_leaf(forward) || g.def(forward).name != "linear_cross_entropy" || g.output(forward, kRowLse) != row_lse ||
      g.output(forward, kNumValid) != num_valid) {
    return std::nullopt;
  }
  if (!std::ranges::equal(g.inputs(forward), in.first(4))) return std::nullopt;
  auto attrs = g.attrs<LinearCrossEntropyVjpAttrs>(f.root);
  if (to_words(attrs.head) != to_words(g.attrs<LinearCrossEntropyAttrs>(forward))) return std::nullopt;
  if (ct_row_loss.valid() || !ct_loss.valid() || f.depends_on(ct_loss, forward)) return std::nullopt;
  const HeadGradients old = head_gradients(g, f.root, attrs, 0);
  attrs.input_gradient = old.ct_in.valid() && f.consumers[old.ct_in] > 0;
  attrs.weight_gradient = old.ct_weight.valid() && f.consumers[old.ct_weight] > 0;
  if (!attrs.input_gradient && !attrs.weight_gradient) return std::nullopt;
  FusionMatch match{
      *g.table().find("linear_cross_entropy_grad"), {in[0], in[1], in[2], in[3], ct_loss, {}}, to_words(attrs), {}, {forward}};
  for (uint16_t k = 0; k < kFirst; ++k) match.replaced.emplace_back(g.output(forward, k), k);
  if (attrs.input_gradient) match.replaced.emplace_back(old.ct_in, static_cast<uint16_t>(ct_in_output(attrs, kFirst)));
  if (attrs.weight_gradient) match.replaced.emplace_back(old.ct_weight, static_cast<uint16_t>(ct_weight_output(attrs, kFirst)));
  return match;
}

// A node like `n`, with other operands and attributes, whose ct_weight stands for `now`.
FusionMatch replaced(const Graph& g, NodeId n, ValueId ct_weight, ValueId now, std::vector<ValueId> operands,
                     const LinearCrossEntropyVjpAttrs& attrs) {
  FusionMatch match{g.node(n).op, std::move(operands), to_words(attrs), {}, {n}};
  for (uint16_t k = 0; k < g.node(n).num_outputs; ++k) match.replaced.emplace_back(g.output(n, k) == ct_weight ? now : g.output(n, k), k);
  return match;
}

// The node whose ct_weight is `v`, if nothing else reads it and nothing is accumulated yet.
std::optional<NodeId> weight_gradient_of(const FuseArgs& f, ValueId v) {
  const Graph& g = f.graph;
  const std::optional<NodeId> node = f.sole_producer(v, "linear_cross_entropy_grad");
  if (!node || g.inputs(*node)[5].valid()) return std::nullopt;
  return head_gradients(g, *node, g.attrs<LinearCrossEntropyVjpAttrs>(*node), kFirst).ct_weight == v ? node : std::nullopt;
}

// cast(ct_weight) to f32 -> wide_weight_gradient
std::optional<FusionMatch> widen(const FuseArgs& f) {
  const Graph& g = f.graph;
  const ValueId ct_weight = g.inputs(f.root)[0];
  const std::optional<NodeId> node = weight_gradient_of(f, ct_weight);
  if (!node || g.type(ct_weight).dtype != DType::kBF16 || g.type(g.output(f.root)).dtype != DType::kF32) return std::nullopt;
  auto attrs = g.attrs<LinearCrossEntropyVjpAttrs>(*node);
  attrs.wide_weight_gradient = 1;
  const std::span<const ValueId> in = g.inputs(*node);
  return replaced(g, *node, ct_weight, g.output(f.root), {in.begin(), in.end()}, attrs);
}

// add(accumulator, ct_weight) -> weight_accumulator, where the accumulator is main-gradient state that nothing else reads.
std::optional<FusionMatch> accumulate(const FuseArgs& f) {
  const Graph& g = f.graph;
  const std::span<const ValueId> terms = g.inputs(f.root);
  for (size_t k = 0; k < 2; ++k) {
    const ValueId accumulator = terms[k], ct_weight = terms[1 - k];
    if (!f.is_main_gradient(accumulator)) continue;
    const std::optional<NodeId> node = weight_gradient_of(f, ct_weight);
    if (!node) continue;
    std::vector<ValueId> operands(g.inputs(*node).begin(), g.inputs(*node).end());
    operands[5] = accumulator;
    return replaced(g, *node, ct_weight, g.output(f.root), std::move(operands), g.attrs<LinearCrossEntropyVjpAttrs>(*node));
  }
  return std::nullopt;
}

constexpr FusionPattern kFusions[] = {{"linear_cross_entropy_vjp", join, true}, {"cast", widen, true}, {"add", accumulate, true}};

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  const auto add_case = [&](std::string name, const HeadCase& c, bool accumulated, LinearCrossEntropyVjpAttrs attrs) {
    std::vector<CaseInput> in = head_inputs(c);
    in.push_back({{1}, Fill::kPositive, CaseDType::kAccumulation});
    in.push_back({in[1].shape, accumulated ? Fill::kNormal : Fill::kAbsent,
                  attrs.wide_weight_gradient ? CaseDType::kAccumulation : CaseDType::kReal});
    all.push_back({std::move(name), std::move(in), to_words(attrs)});
  };
  for (const HeadCase& c : head_cases()) add_case(c.name, c, false, {c.attrs, true, true, false});
  const HeadCase c = head_cases()[1];
  add_case("accumulated, wide", c, true, {c.attrs, true, true, true});
  add_case("frozen weight", c, false, {c.attrs, true, false, false});
  add_case("weight only, accumulated", c, true, {c.attrs, false, true, false});
  add_case("all ignored, accumulated", head_cases().back(), true, {head_cases().back().attrs, true, true, true});
  return all;
}

}  // namespace

extern const OpDef kLinearCrossEntropyGrad;
constexpr OpDef kLinearCrossEntropyGrad{.name = "linear_cross_entropy_grad",
                                        .summary = "linear_cross_entropy with ct_in and ct_weight from the same pass over the logits",
                                        .operands = kOperands,
                                        .outputs = kOutputs,
                                        .attrs = kHeadAttrs,
                                        .diff = Diff::kNoVjp,
                                        .infer = infer,
                                        .decompose = decompose,
                                        .fusions = kFusions,
                                        .cpu = cpu,
                                        .cuda = GLIM_CUDA_KERNEL(cuda::linear_cross_entropy_grad),
                                        .cost = cost,
                                        .memory = {alias},
                                        .precision = Precision::kAccumulates,
                                        .shard = Shard::kVocabulary,
                                        .cases = cases};
static_assert(complete(kLinearCrossEntropyGrad));

}  // namespace glim::ops
