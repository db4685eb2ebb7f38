#include "ops/cross_entropy/cross_entropy.h"

#include "ops/cross_entropy/rows.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"logits"}, {"labels"}, {"denominator", true}};
constexpr std::string_view kOutputs[] = {"loss", "token_accuracy", "num_correct", "num_valid", "row_loss", "row_prediction", "row_lse"};
constexpr AttrSpec kAttrs[] = {integer_attr("ignore_index", -100, "label of a row without a target"),
                               enum_attr("reduction", 0, kReductionNames, "loss: mean over the denominator, or sum"),
                               integer_attr("chunk_rows", 2048, "rows of logits that a fused head holds at once")};

Result<Types> infer(const InferArgs& a) {
  const TensorType& logits = *a.in[0];
  GLIM_EXPECT(is_float(logits.dtype) && logits.shape.rank == 2, "logits must be floating-point of rank 2, not {}", to_string(logits));
  GLIM_EXPECT(logits.shape[1] > 0, "the vocabulary must not be empty");
  GLIM_EXPECT(a.attrs<CrossEntropyAttrs>().chunk_rows > 0, "chunk_rows must be positive, not {}", a.attrs<CrossEntropyAttrs>().chunk_rows);
  GLIM_TRY(check_targets(*a.in[1], a.in[2], logits.shape[0], accumulation_dtype(logits.dtype)));
  return cross_entropy_types(logits.shape[0], accumulation_dtype(logits.dtype));
}

// loss = sum of (lse(x) - x[label]) / n;  ct_x = (ct_loss / n + ct_row_loss) (softmax(x) - onehot(label)), 0 on ignored rows
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  GLIM_CHECK(!a.cotangents[kRowLse].valid(), "cross_entropy: row_lse is a saved primal; it has no gradient");
  if (!a.cotangents[kLoss].valid() && !a.cotangents[kRowLoss].valid()) return {{}, {}, {}};
  return {emit_value(g, "cross_entropy_vjp",
                     {a.in[0], a.in[1], a.in[2], a.out[kNumValid], a.out[kRowLse], a.cotangents[kLoss], a.cotangents[kRowLoss]},
                     a.attrs<CrossEntropyAttrs>()),
          {},
          {}};
}

void cpu(const KernelArgs& k) {
  const auto attrs = k.attrs<CrossEntropyAttrs>();
  const TensorView& logits = k.in[0];
  const int64_t rows = logits.type.shape[0], vocabulary = logits.type.shape[1];
  const Labels labels{k.in[1].as<int32_t>(), rows, vocabulary, attrs.ignore_index};
  const int64_t num_valid = count_valid(labels, k.context);
  cpu::dispatch_float(logits.type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    A *loss = k.out[kRowLoss].as<A>(), *lse = k.out[kRowLse].as<A>();
    int32_t* prediction = k.out[kRowPrediction].as<int32_t>();
    cpu::for_row_ranges(k.context, rows, vocabulary, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (labels.valid(i))
          row_statistics<A>(logits.row<T>(i), vocabulary, labels.values[i], loss[i], prediction[i], lse[i]);
        else
          ignored_row(loss[i], prediction[i], lse[i]);
      }
    });
  });
  reduce_rows(labels, num_valid, k.in[2], attrs.reduction, k.out);
}

std::vector<OpCase> cases() {
  const CaseInput logits{{11, 23}}, labels{{11}, Fill::kLabels, CaseDType::kI32, 23}, absent{{1}, Fill::kAbsent},
      denominator{{1}, Fill::kPositive, CaseDType::kAccumulation};
  return {{"mean", {logits, labels, absent}, to_words(kCrossEntropyDefaults)},
          {"denominator", {logits, labels, denominator}, to_words(kCrossEntropyDefaults)},
          {"sum", {logits, labels, absent}, to_words(CrossEntropyAttrs{-100, Reduction::kSum, 1024})},
          {"all ignored", {logits, {{11}, Fill::kZero, CaseDType::kI32}, absent}, to_words(CrossEntropyAttrs{0, Reduction::kMean, 1024})},
          {"one class", {{{3, 1}}, {{3}, Fill::kLabels, CaseDType::kI32, 1}, absent}, to_words(kCrossEntropyDefaults)}};
}

// ---- cross_entropy_vjp
constexpr OperandSpec kVjpOperands[] = {{"logits"},  {"labels"},        {"denominator", true}, {"num_valid"},
                                        {"row_lse"}, {"ct_loss", true}, {"ct_row_loss", true}};
constexpr std::string_view kVjpOutputs[] = {"ct_logits"};

Result<Types> vjp_infer(const InferArgs& a) {
  GLIM_TRY(infer({a.in.first(3), a.attr_words}));
  GLIM_TRY(check_saved(*a.in[3], *a.in[4], a.in[5], a.in[6], a.in[0]->shape[0], accumulation_dtype(a.in[0]->dtype)));
  return Types{*a.in[0]};
}

void vjp_cpu(const KernelArgs& k) {
  const auto attrs = k.attrs<CrossEntropyAttrs>();
  const TensorView &logits = k.in[0], &ct_row_loss = k.in[6], &out = k.out[0];
  const int64_t rows = logits.type.shape[0], vocabulary = logits.type.shape[1];
  const Labels labels{k.in[1].as<int32_t>(), rows, vocabulary, attrs.ignore_index};
  const double shared = loss_coefficient(k.in[5], k.in[2], *k.in[3].as<int64_t>(), attrs.reduction);
  cpu::dispatch_float(logits.type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    cpu::for_row_ranges(k.context, rows, vocabulary, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* ct = out.row<T>(i);
        if (!labels.valid(i)) {
          std::fill_n(ct, vocabulary, T(A(0)));
          continue;
        }
        const A lse = k.in[4].as<A>()[i];
        const A factor = static_cast<A>(shared + (ct_row_loss.present() ? static_cast<double>(ct_row_loss.as<A>()[i]) : 0));
        const T* x = logits.row<T>(i);
        // The label's entry is set last: ct may overwrite x.
        const A at_label = cpu::fast_exp(static_cast<A>(x[labels.values[i]]) - lse) - A(1);
        for (int64_t j = 0; j < vocabulary; ++j) ct[j] = T(factor * cpu::fast_exp(static_cast<A>(x[j]) - lse));
        ct[labels.values[i]] = T(factor * at_label);
      }
    });
  });
}

std::vector<OpCase> vjp_cases() {
  const CaseInput logits{{11, 23}}, labels{{11}, Fill::kLabels, CaseDType::kI32, 23}, absent{{1}, Fill::kAbsent},
      one{{1}, Fill::kPositive, CaseDType::kAccumulation}, count{{1}, Fill::kOne, CaseDType::kI64},
      rows{{11}, Fill::kPositive, CaseDType::kAccumulation};
  return {{"mean", {logits, labels, absent, count, rows, one, absent}, to_words(kCrossEntropyDefaults)},
          {"denominator, rows", {logits, labels, one, count, rows, one, rows}, to_words(kCrossEntropyDefaults)},
          {"rows only", {logits, labels, absent, count, rows, absent, rows}, to_words(CrossEntropyAttrs{-100, Reduction::kSum, 1024})}};
}

}  // namespace

extern const OpDef kCrossEntropy, kCrossEntropyVjp;
constexpr OpDef kCrossEntropy{.name = "cross_entropy",
                              .summary = "-log softmax(logits)[label] over rows with a label, with accuracy and counts",
                              .operands = kOperands,
                              .outputs = kOutputs,
                              .attrs = kAttrs,
                              .diff = Diff::kHasVjp,
                              .infer = infer,
                              .vjp = vjp,
                              .cpu = cpu,
                              .cuda = GLIM_CUDA_KERNEL(cuda::cross_entropy),
                              .cost =
                                  [](const CostArgs& a) {
                                    Cost cost = moved(a);
                                    cost.flops = 12.0 * static_cast<double>(a.in[0]->shape.numel());
                                    return cost;
                                  },
                              .memory = {no_alias},
                              .precision = Precision::kAccumulates,
                              .shard = Shard::kVocabulary,
                              .cases = cases};
static_assert(complete(kCrossEntropy));

constexpr OpDef kCrossEntropyVjp{.name = "cross_entropy_vjp",
                                 .summary = "(ct_loss / denominator + ct_row_loss) * (softmax(logits) - onehot(label))",
                                 .operands = kVjpOperands,
                                 .outputs = kVjpOutputs,
                                 .attrs = kAttrs,
                                 .diff = Diff::kNoVjp,
                                 .infer = vjp_infer,
                                 .cpu = vjp_cpu,
                                 .cuda = GLIM_CUDA_KERNEL(cuda::cross_entropy_vjp),
                                 .cost = per_element<12>,
                                 .memory = {over_first},
                                 .precision = Precision::kAccumulates,
                                 .shard = Shard::kVocabulary,
                                 .cases = vjp_cases};
static_assert(complete(kCrossEntropyVjp));

}  // namespace glim::ops
