// The fused head against plain ops in f64, and the loss pitfalls.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "ops/builtin_ops.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "tests/ops/case_inputs.h"

namespace glim {
namespace {

using testing::Tensor;
using Values = std::vector<double>;
using ops::CrossEntropyAttrs;
using ops::LinearCrossEntropyAttrs;
using ops::LinearCrossEntropyVjpAttrs;
using ops::Reduction;

testing::KernelRun run(std::string_view op, std::span<const uint32_t> words, std::initializer_list<const Tensor*> in,
                       const testing::RunOptions& options = {}) {
  return testing::run_op(builtin_ops()[*builtin_ops().find(op)], words, std::span(in.begin(), in.size()), options);
}

struct Problem {
  Tensor in, weight, labels;
  std::optional<Tensor> denominator;
};
constexpr int64_t kRows = 13, kWidth = 6, kVocabulary = 37;

// Raw logits in * weight^T reach about +-60.
Problem make(DType dtype, bool all_ignored = false) {
  Values labels, in = testing::random_normal(kRows * kWidth, 5), weight = testing::random_normal(kVocabulary * kWidth, 6);
  for (int64_t i = 0; i < kRows; ++i)
    labels.push_back(all_ignored || i % 4 == 1 || i == 12 ? -100 : static_cast<double>((i * 11) % kVocabulary));
  for (double& x : in) x *= 10;
  return {Tensor({dtype, {kRows, kWidth}}, in), Tensor({dtype, {kVocabulary, kWidth}}, weight), Tensor({DType::kI32, {kRows}}, labels),
          std::nullopt};
}

struct Answer {
  std::vector<Values> forward;  // the seven outputs
  Values ct_in, ct_weight;
};

// The decompositions, node by node: linear, scale, softcap, cross_entropy and their vjps.
Answer unfused(const Problem& p, const LinearCrossEntropyAttrs& attrs, double ct_loss) {
  Graph g(builtin_ops());
  const DType acc = accumulation_dtype(p.in.type().dtype);
  const ValueId in = g.add_leaf(LeafKind::kInput, "in", p.in.type()), weight = g.add_leaf(LeafKind::kParameter, "weight", p.weight.type()),
                labels = g.add_leaf(LeafKind::kInput, "labels", p.labels.type()), ct = g.add_leaf(LeafKind::kSeed, "ct", {acc, {1}});
  const ValueId denominator = p.denominator ? g.add_leaf(LeafKind::kInput, "denominator", {acc, {1}}) : ValueId{};
  const ValueId forward_in[] = {in, weight, labels, denominator};
  const std::vector<uint32_t> words = to_words(attrs);
  const std::vector<ValueId> out =
      builtin_ops()[*builtin_ops().find("linear_cross_entropy")].decompose(g, std::span<const ValueId>(forward_in), words);
  const ValueId vjp_in[] = {in, weight, labels, denominator, out[ops::kNumValid], out[ops::kRowLse], ct, ValueId{}};
  const std::vector<uint32_t> vjp_words = to_words(LinearCrossEntropyVjpAttrs{attrs, true, true, false});
  const std::vector<ValueId> cts =
      builtin_ops()[*builtin_ops().find("linear_cross_entropy_vjp")].decompose(g, std::span<const ValueId>(vjp_in), vjp_words);
  std::vector<std::pair<ValueId, Tensor>> leaves = {
      {in, p.in}, {weight, p.weight}, {labels, p.labels}, {ct, Tensor({acc, {1}}, Values{ct_loss})}};
  if (p.denominator) leaves.emplace_back(denominator, *p.denominator);
  const std::vector<Tensor> all = testing::evaluate(g, leaves);
  Answer answer;
  for (const ValueId v : out) answer.forward.push_back(all[v.index].values());
  answer.ct_in = all[cts[0].index].values();
  answer.ct_weight = all[cts[1].index].values();
  return answer;
}

Answer fused(const Problem& p, const LinearCrossEntropyAttrs& attrs, double ct_loss, const testing::RunOptions& options = {}) {
  const Tensor ct({accumulation_dtype(p.in.type().dtype), {1}}, Values{ct_loss});
  const auto r = run("linear_cross_entropy_grad", to_words(LinearCrossEntropyVjpAttrs{attrs, true, true, false}),
                     {&p.in, &p.weight, &p.labels, p.denominator ? &*p.denominator : nullptr, &ct, nullptr}, options);
  EXPECT_TRUE(r.operands_intact && r.margins_intact && r.error.empty()) << r.error;
  Answer answer;
  for (size_t k = 0; k < 7; ++k) answer.forward.push_back(r.out[k].values());
  answer.ct_in = r.out[7].values();
  answer.ct_weight = r.out[8].values();
  return answer;
}

void expect_close(const Values& a, const Values& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance * std::max(1.0, testing::norm(b))) << i;
}
void expect_equal(const Answer& a, const Answer& b, double tolerance) {
  for (size_t k = 0; k < 7; ++k) {
    SCOPED_TRACE(fmt::format("output {}", k));
    expect_close(a.forward[k], b.forward[k], tolerance);
  }
  expect_close(a.ct_in, b.ct_in, tolerance);
  expect_close(a.ct_weight, b.ct_weight, tolerance);
}

TEST(Head, FusedEqualsUnfused) {
  for (const int64_t chunk_rows : {int64_t{1}, int64_t{7}, kRows, kRows + 5}) {
    for (const double multiplier : {1.0, 0.196}) {
      for (const double softcap : {0.0, 20.0}) {
        for (const bool given : {false, true}) {
          for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
            SCOPED_TRACE(fmt::format("chunk {} multiplier {} softcap {} denominator {}", chunk_rows, multiplier, softcap, given));
            const LinearCrossEntropyAttrs attrs{multiplier, softcap, -100, reduction, chunk_rows};
            for (const auto& [dtype, tolerance] : {std::pair{DType::kF64, 1e-12}, std::pair{DType::kF32, 2e-5}}) {
              Problem p = make(dtype);
              if (given) p.denominator = Tensor({dtype, {1}}, Values{20});
              const Answer expected = unfused(p, attrs, 1.5);
              ASSERT_GT(testing::norm(expected.ct_weight), 1e-3);
              expect_equal(fused(p, attrs, 1.5), expected, tolerance);
              expect_equal(fused(p, attrs, 1.5, {.num_threads = 3, .margins = true}), expected, tolerance);
            }
          }
        }
      }
    }
  }
}

TEST(Head, MultiplierMatters) {  // the comparison above would notice a fused head that forgets it
  const Problem p = make(DType::kF64);
  const Answer with = fused(p, {0.196, 20, -100, Reduction::kMean, 4}, 1), without = fused(p, {1, 20, -100, Reduction::kMean, 4}, 1);
  EXPECT_GT(std::fabs(with.forward[0][0] - without.forward[0][0]), 0.1);
}

TEST(Head, AllIgnoredIsExactlyZero) {
  for (const std::optional<double> denominator : {std::optional<double>{}, std::optional<double>{0.0}}) {
    Problem p = make(DType::kF64, true);
    if (denominator) p.denominator = Tensor({DType::kF64, {1}}, Values{*denominator});
    const Answer a = fused(p, {0.196, 20, -100, Reduction::kMean, 5}, 1);
    for (const size_t k : {0, 1, 2, 3}) EXPECT_EQ(a.forward[k][0], 0);
    EXPECT_EQ(a.ct_in, Values(a.ct_in.size(), 0.0));
    EXPECT_EQ(a.ct_weight, Values(a.ct_weight.size(), 0.0));
  }
  Problem some = make(DType::kF64);  // valid rows, but the whole step's count says 0: still no NaN
  some.denominator = Tensor({DType::kF64, {1}}, Values{0});
  const Answer a = fused(some, {1, 20, -100, Reduction::kMean, 5}, 1);
  EXPECT_EQ(a.forward[0][0], 0);
  EXPECT_EQ(testing::norm(a.ct_in), 0);
}

TEST(Head, GradientsSwitchOffAndAccumulate) {
  const Problem p = make(DType::kBF16);
  const LinearCrossEntropyAttrs attrs{0.196, 20, -100, Reduction::kMean, 4};
  const Tensor ct({DType::kF32, {1}}, Values{1});
  const Tensor before({DType::kF32, p.weight.type().shape}, testing::random_normal(kVocabulary * kWidth, 9));
  const auto alone = run("linear_cross_entropy_grad", to_words(LinearCrossEntropyVjpAttrs{attrs, false, true, true}),
                         {&p.in, &p.weight, &p.labels, nullptr, &ct, nullptr});
  const auto added = run("linear_cross_entropy_grad", to_words(LinearCrossEntropyVjpAttrs{attrs, false, true, true}),
                         {&p.in, &p.weight, &p.labels, nullptr, &ct, &before});
  const auto frozen = run("linear_cross_entropy_grad", to_words(LinearCrossEntropyVjpAttrs{attrs, true, false, false}),
                          {&p.in, &p.weight, &p.labels, nullptr, &ct, nullptr});
  ASSERT_EQ(alone.out.size(), 8U);
  ASSERT_EQ(frozen.out.size(), 8U);
  EXPECT_EQ(frozen.out[7].type(), p.in.type());
  EXPECT_EQ(alone.out[7].type(), before.type());
  for (int64_t k = 0; k < before.numel(); ++k) EXPECT_NEAR(added.out[7].get(k), before.get(k) + alone.out[7].get(k), 1e-5);
}

TEST(Head, LabelOutOfRangeIsReportedWithItsPosition) {
  for (const double label : {37.0, -1.0}) {
    Problem p = make(DType::kF32);
    p.labels.set(6, label);
    const auto r = run("linear_cross_entropy", to_words(ops::kLinearCrossEntropyDefaults), {&p.in, &p.weight, &p.labels, nullptr});
    EXPECT_EQ(r.error, fmt::format("label {} at position 6 is outside [0, 37) and is not ignore_index (-100)", label));
  }
}

TEST(Head, WorkspaceIsOneChunkOfLogitsAndItsRows) {
  const OpTable& table = builtin_ops();
  for (const std::string_view name : {"linear_cross_entropy", "linear_cross_entropy_vjp", "linear_cross_entropy_grad"}) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
      for (const int64_t chunk_rows : {1, 64, 4096}) {
        const TensorType in{dtype, {512, 16}}, weight{dtype, {202048, 16}};
        const TensorType* types[] = {&in, &weight};
        const std::vector<uint32_t> words =
            to_words(LinearCrossEntropyVjpAttrs{{1, 20, -100, Reduction::kMean, chunk_rows}, true, true, true});
        const size_t bytes = table[*table.find(name)].cost({types, {}, words}).workspace_bytes;
        const auto rows = static_cast<size_t>(std::min<int64_t>(chunk_rows, 512));
        const size_t logits = rows * 202048 * size_of(accumulation_dtype(dtype)),
                     sides = 2 * rows * 16 * size_of(dtype) + 512 * sizeof(int32_t);
        EXPECT_GE(bytes, logits + sides);
        EXPECT_LT(bytes, logits + sides + size_t{6} * 256);
      }
    }
  }
}

std::vector<Values> cross_entropy(const Values& logits, const Values& labels) {
  const auto rows = static_cast<int64_t>(labels.size()), vocabulary = static_cast<int64_t>(logits.size()) / rows;
  const Tensor x({DType::kF64, {rows, vocabulary}}, logits), y({DType::kI32, {rows}}, labels);
  const auto r = run("cross_entropy", to_words(ops::kCrossEntropyDefaults), {&x, &y, nullptr});
  std::vector<Values> out;
  for (const Tensor& t : r.out) out.push_back(t.values());
  return out;
}

TEST(CrossEntropy, AccuracyCountsValidTokensOnly) {  // labels [-100,5,7,-100,2,9], shifted; 3 of 4 predictions are right
  const Values labels = {5, 7, -100, 2, 9, -100}, predictions = {5, 7, 1, 2, 0, 4};
  Values logits(60, 0.0);
  for (size_t i = 0; i < 6; ++i) logits[i * 10 + static_cast<size_t>(predictions[i])] = 3;
  const auto out = cross_entropy(logits, labels);
  EXPECT_EQ(out[ops::kTokenAccuracy][0], 0.75);
  EXPECT_EQ(out[ops::kNumCorrect][0], 3);
  EXPECT_EQ(out[ops::kNumValid][0], 4);
  EXPECT_EQ(out[ops::kRowLoss][2], 0);
  EXPECT_EQ(out[ops::kRowPrediction], (Values{5, 7, -1, 2, 0, -1}));
}

TEST(CrossEntropy, TiesGoToTheLowestIndex) {
  Values logits(3 * 40, -1.0);
  for (const size_t j : {7, 8, 35}) logits[j] = 2;
  for (const size_t j : {39, 21}) logits[40 + j] = 0.5;
  EXPECT_EQ(cross_entropy(logits, {7, 21, 0})[ops::kRowPrediction], (Values{7, 21, 0}));
  // Under the cap two different logits become one: over capped logits they tie.
  const Tensor in({DType::kF64, {1, 1}}, Values{1}), weight({DType::kF64, {3, 1}}, Values{1, 5000, 9000}),
      labels({DType::kI32, {1}}, Values{0});
  const auto r =
      run("linear_cross_entropy", to_words(LinearCrossEntropyAttrs{1, 20, -100, Reduction::kMean, 4}), {&in, &weight, &labels, nullptr});
  EXPECT_EQ(r.out[ops::kRowPrediction].get(0), 1);
}

TEST(CrossEntropy, MeanIsPerToken) {  // documents of 7 and 2 tokens with losses 1 and 4: 15/9, not 2.5
  Values logits, labels(9, 0.0);
  for (int64_t i = 0; i < 9; ++i) {
    const double loss = i < 7 ? 1 : 4;
    logits.insert(logits.end(), {0.0, std::log(std::expm1(loss))});  // log(1 + e^x) = loss
  }
  EXPECT_NEAR(cross_entropy(logits, labels)[ops::kLoss][0], 15.0 / 9.0, 1e-14);
}

TEST(CrossEntropy, NaNReachesTheLoss) { EXPECT_TRUE(std::isnan(cross_entropy({0, std::nan(""), 1}, {0})[ops::kLoss][0])); }

}  // namespace
}  // namespace glim
