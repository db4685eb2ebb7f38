#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include "engine/passes/fuse.h"
#include "ops/linear/linear.h"
#include "ops/linear_cross_entropy/head.h"
#include "ops/scale/scale.h"
#include "ops/softcap/softcap.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}, {"weight"}, {"labels"}, {"denominator", true}};
constexpr std::string_view kOutputs[] = {"loss", "token_accuracy", "num_correct", "num_valid", "row_loss", "row_prediction", "row_lse"};

Result<Types> infer(const InferArgs& a) {
  GLIM_TRY(check_head(*a.in[0], *a.in[1], *a.in[2], a.in[3], a.attrs<LinearCrossEntropyAttrs>()));
  return cross_entropy_types(a.in[0]->shape[0], accumulation_dtype(a.in[0]->dtype));
}

// The law of cross_entropy's vjp behind softcap, multiplier and product: ct_in = ct_logits W, ct_weight = ct_logits^T in
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  GLIM_CHECK(!a.cotangents[kRowLse].valid(), "linear_cross_entropy: row_lse is a saved primal; it has no gradient");
  if (!a.cotangents[kLoss].valid() && !a.cotangents[kRowLoss].valid()) return {{}, {}, {}, {}};
  const HeadGradients ct =
      linear_cross_entropy_vjp(g, a.in[0], a.in[1], a.in[2], a.in[3], a.out[kNumValid], a.out[kRowLse], a.cotangents[kLoss],
                               a.cotangents[kRowLoss], {a.attrs<LinearCrossEntropyAttrs>(), true, true, false});
  return {ct.ct_in, ct.ct_weight, {}, {}};
}

std::vector<ValueId> decompose(Graph& g, std::span<const ValueId> in, std::span<const uint32_t> words) {
  const auto attrs = from_words<LinearCrossEntropyAttrs>(words);
  const CrossEntropy out =
      cross_entropy(g, plain_logits(g, in[0], in[1], attrs), in[2], in[3], {attrs.ignore_index, attrs.reduction, attrs.chunk_rows});
  return {out.loss, out.token_accuracy, out.num_correct, out.num_valid, out.row_loss, out.row_prediction, out.row_lse};
}

void cpu(const KernelArgs& k) {
  run_head({.attrs = k.attrs<LinearCrossEntropyAttrs>(),
            .in = k.in[0],
            .weight = k.in[1],
            .labels = k.in[2],
            .denominator = k.in[3],
            .statistics = k.out},
           k.workspace, k.context);
}

Cost cost(const CostArgs& a) { return head_cost(a, a.attrs<LinearCrossEntropyAttrs>().chunk_rows, 1); }

// cross_entropy(softcap?(scale?(linear(in, weight)))) -> linear_cross_entropy, when nothing else reads what lies between.
std::optional<FusionMatch> fuse(const FuseArgs& f) {
  const Graph& g = f.graph;
  const std::optional<OpId> op = g.table().find("linear_cross_entropy");
  const auto loss = g.attrs<CrossEntropyAttrs>(f.root);
  LinearCrossEntropyAttrs attrs{1, 0, loss.ignore_index, loss.reduction, loss.chunk_rows};
  FusionMatch match{*op, {}, {}, {}, {}};
  ValueId logits = g.inputs(f.root)[0];
  if (const std::optional<NodeId> cap = f.sole_producer(logits, "softcap")) {
    attrs.softcap = g.attrs<SoftcapAttrs>(*cap).cap;
    match.interior.push_back(*cap);
    logits = g.inputs(*cap)[0];
  }
  if (const std::optional<NodeId> factor = f.sole_producer(logits, "scale")) {
    attrs.multiplier = g.attrs<ScaleAttrs>(*factor).factor;
    match.interior.push_back(*factor);
    logits = g.inputs(*factor)[0];
  }
  const std::optional<NodeId> product = f.sole_producer(logits, "linear");
  if (!product || g.inputs(*product)[2].valid()) return std::nullopt;
  match.interior.push_back(*product);
  match.operands = {g.inputs(*product)[0], g.inputs(*product)[1], g.inputs(f.root)[1], g.inputs(f.root)[2]};
  match.attr_words = to_words(attrs);
  for (uint16_t k = 0; k < kNumCrossEntropyOutputs; ++k) match.replaced.emplace_back(g.output(f.root, k), k);
  return match;
}

constexpr FusionPattern kFusions[] = {{"cross_entropy", fuse, false}};

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const HeadCase& c : head_cases()) all.push_back({c.name, head_inputs(c), to_words(c.attrs)});
  return all;
}

}  // namespace

extern const OpDef kLinearCrossEntropy;
constexpr OpDef kLinearCrossEntropy{.name = "linear_cross_entropy",
                                    .summary = "cross_entropy(softcap(multiplier * in * weight^T)) in chunks of rows",
                                    .operands = kOperands,
                                    .outputs = kOutputs,
                                    .attrs = std::span(kHeadAttrs).first(kNumForwardAttrs),
                                    .diff = Diff::kHasVjp,
                                    .infer = infer,
                                    .vjp = vjp,
                                    .decompose = decompose,
                                    .fusions = kFusions,
                                    .cpu = cpu,
                                    .cuda = GLIM_CUDA_KERNEL(cuda::linear_cross_entropy),
                                    .cost = cost,
                                    .memory = {no_alias},
                                    .precision = Precision::kAccumulates,
                                    .shard = Shard::kVocabulary,
                                    .cases = cases};
static_assert(complete(kLinearCrossEntropy));

}  // namespace glim::ops
