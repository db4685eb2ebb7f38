// Loss, accuracy and main gradients over the micro-steps of one optimizer step are those of one large batch, whatever labels the
// micro-steps have.
#include "runtime/evaluate.h"
#include "tests/runtime/small_model.h"

namespace glim {
namespace {

constexpr int64_t kTokens = 12;
// Each longer than half a row, so that every one has a row of its own; 8, 1, 5, 2 and no valid labels.
constexpr size_t kLengths[] = {12, 9, 10, 8, 11};
constexpr size_t kNumLabels[] = {8, 1, 5, 2, 0};

std::string documents() {
  std::string lines;
  for (size_t k = 0; k < std::size(kLengths); ++k) {
    const std::vector<int32_t> ids = random_tokens(static_cast<int64_t>(kLengths[k]), 37, k + 1);
    std::string tokens, labels;
    for (size_t i = 0; i < ids.size(); ++i) {
      tokens += (i > 0 ? "," : "") + std::to_string(ids[i]);
      labels += (i > 0 ? "," : "") + std::to_string(i + kNumLabels[k] >= ids.size() ? ids[i] : -100);
    }
    lines += "{\"input_ids\":[" + tokens + "],\"labels\":[" + labels + "]}\n";
  }
  return lines;
}
TrainingData load(const std::string& lines, int64_t tokens, int micro_steps) {
  const ScratchFolder folder;
  write_file(folder / "a.jsonl", lines);
  DataConfig config;
  config.files = {folder / "a.jsonl"};
  config.validation_fraction = 0;
  Result<TrainingData> data = TrainingData::load(config, {tokens, 3, micro_steps}, {37, false});
  if (!data) throw std::runtime_error(data.error().to_string());
  return std::move(*data);
}

struct StepResult {
  double loss = 0;
  int64_t num_correct = 0, num_valid = 0;
  std::vector<double> losses;  // of the micro-steps
  std::map<std::string, std::vector<double>> gradients;
};
StepResult first_step(const TrainingData& data) {
  SmallModel model(small_spec(), {.tokens = data.options().tokens,
                                  .segments = data.max_segments(),
                                  .programs = {ProgramKind::kFirst, ProgramKind::kNext},
                                  .denominator = true});
  StepResult result;
  EXPECT_TRUE(model.model().set_scalar("denominator", static_cast<double>(data.step_num_valid(0))));
  for (int micro_step = 0; micro_step < data.options().micro_steps; ++micro_step) {
    const ProgramKind kind = micro_step == 0 ? ProgramKind::kFirst : ProgramKind::kNext;
    EXPECT_TRUE(set_batch(model.model(), data.batch(0, micro_step)));
    EXPECT_TRUE(model.model().run(kind));
    result.losses.push_back(*model.model().scalar(kind, "loss"));
    result.loss += result.losses.back();
    result.num_correct += static_cast<int64_t>(*model.model().scalar(kind, "num_correct"));
    result.num_valid += static_cast<int64_t>(*model.model().scalar(kind, "num_valid"));
  }
  result.gradients = model.gradients();
  return result;
}

TEST(Accumulation, EqualsOneLargeBatchWithAMicroStepWithoutLabels) {
  const TrainingData micro = load(documents(), kTokens, 5), whole = load(documents(), 50, 1);
  ASSERT_EQ(micro.num_rows(), 5);
  ASSERT_EQ(whole.num_rows(), 1);
  EXPECT_EQ(micro.statistics().num_unlabelled, 1);
  const StepResult a = first_step(micro), b = first_step(whole);
  EXPECT_EQ(a.num_valid, 16);
  EXPECT_EQ(b.num_valid, 16);
  EXPECT_EQ(micro.step_num_valid(0), 16);
  EXPECT_EQ(std::count(a.losses.begin(), a.losses.end(), 0.0), 1);  // exactly 0 without labels, never NaN
  EXPECT_NEAR(a.loss, b.loss, 1e-12);
  EXPECT_GT(a.loss, 1);
  EXPECT_EQ(a.num_correct, b.num_correct);
  EXPECT_LT(worst_distance(a.gradients, b.gradients), 1e-12);
}

// The mean is per token: not the mean of documents' means, which these lengths tell apart.
TEST(Accumulation, TheLossIsAMeanOverTokens) {
  const TrainingData whole = load(documents(), 50, 1), micro = load(documents(), kTokens, 1);
  double sum = 0, mean_of_means = 0;
  int64_t num_valid = 0;
  SmallModel model(small_spec(), {.tokens = kTokens, .programs = {ProgramKind::kForward}, .denominator = true});
  for (int64_t row = 0; row < 5; ++row) {
    const Result<Evaluation> one = evaluate(model.model(), 1, [&](int64_t) { return micro.batch(row); });
    ASSERT_TRUE(one);
    EXPECT_TRUE(std::isfinite(one->loss));
    if (one->num_valid == 0) {
      EXPECT_EQ(one->loss, 0);
      EXPECT_EQ(one->token_accuracy, 0);
    }
    sum += one->loss * static_cast<double>(one->num_valid);
    mean_of_means += one->loss / 4;
    num_valid += one->num_valid;
  }
  const StepResult step = first_step(whole);
  EXPECT_NEAR(step.loss, sum / static_cast<double>(num_valid), 1e-12);
  EXPECT_GT(std::abs(step.loss - mean_of_means), 1e-3);
}

// A whole optimizer step without labels: a loss of 0 and gradients of exactly 0.
TEST(Accumulation, AStepWithoutLabels) {
  const TrainingData data = load("{\"input_ids\":[1,2,3,4],\"labels\":[-100,-100,-100,-100]}\n{\"input_ids\":[5]}\n", 4, 2);
  ASSERT_EQ(data.num_rows(), 2);
  EXPECT_EQ(data.step_num_valid(0), 0);
  EXPECT_EQ(data.statistics().num_unlabelled, 2);
  const StepResult step = first_step(data);
  EXPECT_EQ(step.loss, 0);
  EXPECT_EQ(step.num_valid, 0);
  for (const auto& [name, gradient] : step.gradients) {
    for (const double element : gradient) ASSERT_EQ(element, 0) << name;
  }
}

}  // namespace
}  // namespace glim
