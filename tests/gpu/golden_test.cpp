// `glim run` and `glim generate` with --backend cuda against the reference cases made from transformers in float64.
#include <cmath>
#include <cstdio>

#include "runtime/device.h"
#include "tests/cli/golden_case.h"

namespace glim {
namespace {

Tensors run_case(const std::string& name, const std::string& dtype, const std::vector<std::string>& more = {}) {
  const ScratchFolder scratch;
  std::vector<std::string> arguments{"run",       golden_folder(name), "--inputs", golden_folder(name) + "/case.safetensors",
                                     "--outputs", scratch / "out",     "--grad",   "--dtype",
                                     dtype,       "--backend",         "cuda"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const ProgramResult result = run_glim(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.exit_code == 0 ? read_tensors(scratch / "out") : Tensors{};
}

class GpuGolden : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (std::string why; !cuda_available(why)) GTEST_SKIP() << "skipped: no CUDA device (" << why << ")";
  }
  [[nodiscard]] static Tensors run(const std::string& dtype, const std::vector<std::string>& more = {}) {
    return run_case(GetParam(), dtype, more);
  }
  [[nodiscard]] std::vector<double> mask() const {
    return reference_.contains("in.attention_mask") ? reference_.at("in.attention_mask").at : std::vector<double>{};
  }
  void expect_close(const std::string& dtype, double logits_bound, double gradient_bound, double loss_bound) const {
    const Tensors got = run(dtype);
    ASSERT_TRUE(got.contains("logits") && got.contains("loss"));
    EXPECT_EQ(got.at("num_correct").at.at(0), facts_["correct"].get<double>());
    EXPECT_EQ(got.at("num_valid").at.at(0), facts_["valid"].get<double>());
    const double logits = distance(got.at("logits"), reference_.at("out.logits"), mask());
    EXPECT_LT(logits, logits_bound);
    if (facts_["valid"] == 0) {
      for (const auto& [key, values] : got) {
        if (!key.starts_with("grad.")) continue;
        EXPECT_TRUE(std::all_of(values.at.begin(), values.at.end(), [](double value) { return value == 0; })) << key;
      }
      return;
    }
    EXPECT_NEAR(got.at("loss").at.at(0), facts_["loss"].get<double>(), loss_bound);
    double worst = 0;
    int num_gradients = 0;
    for (const auto& [key, expected] : reference_) {
      if (!key.starts_with("grad.")) continue;
      ASSERT_TRUE(got.contains(key)) << key;
      const double error = distance(got.at(key), expected);
      EXPECT_LT(error, gradient_bound) << key;
      worst = std::max(worst, error);
      ++num_gradients;
    }
    EXPECT_GT(num_gradients, 0);
    std::printf("  %s %s: logits %.2e, worst of %d gradients %.2e\n", GetParam().c_str(), dtype.c_str(), logits, num_gradients, worst);
  }
  nlohmann::json facts_ = read_case(GetParam());
  Tensors reference_ = read_tensors(golden_folder(GetParam()) + "/case.safetensors");
};

TEST_P(GpuGolden, F32) { expect_close("f32", 2e-5, 1e-4, 1e-5); }
TEST_P(GpuGolden, F64) { expect_close("f64", 1e-7, 1e-7, 1e-7); }

// Every position whose best logit leads by more than four times the RMS error of transformers' bf16 logits has the same best logit.
void expect_same_best(const Values& logits, const Values& expected, const std::vector<double>& mask, double relative_error) {
  const size_t vocab = static_cast<size_t>(expected.shape.back()), num_rows = expected.at.size() / vocab;
  double squares = 0, count = 0;
  for (size_t i = 0; i < expected.at.size(); ++i) {
    if (!mask.empty() && mask[i / vocab] == 0) continue;
    squares += expected.at[i] * expected.at[i];
    count += 1;
  }
  const double rms = relative_error * std::sqrt(squares / count);
  size_t num_clear = 0;
  for (size_t row = 0; row < num_rows; ++row) {
    if (!mask.empty() && mask[row] == 0) continue;
    const auto found = logits.at.begin() + static_cast<long>(row * vocab), right = expected.at.begin() + static_cast<long>(row * vocab);
    const auto best = std::max_element(right, right + static_cast<long>(vocab));
    double second = -INFINITY;
    for (auto each = right; each != right + static_cast<long>(vocab); ++each) {
      if (each != best) second = std::max(second, *each);
    }
    if (*best - second <= 4 * rms) continue;
    ++num_clear;
    EXPECT_EQ(std::max_element(found, found + static_cast<long>(vocab)) - found, best - right) << "row " << row;
  }
  EXPECT_GT(num_clear, num_rows / 8);
}

// Not much further away than transformers' own bf16 runs, and over all cases no further.
TEST(GpuProgram, BF16IsAsCloseAsTransformers) {
  if (std::string why; !cuda_available(why)) GTEST_SKIP() << "skipped: no CUDA device (" << why << ")";
  double log_logits = 0, log_gradients = 0;
  int num_cases = 0;
  for (const std::string& name : golden_text_cases()) {
    SCOPED_TRACE(name);
    const nlohmann::json facts = read_case(name);
    if (facts["valid"] == 0 || !facts.contains("hf_bf16_eager_grad_rel_l2")) continue;  // their error is not recorded
    const auto theirs = [&](const std::string& what) {
      return std::max(facts["hf_bf16_eager_" + what].get<double>(), facts["hf_bf16_sdpa_" + what].get<double>());
    };
    const Tensors reference = read_tensors(golden_folder(name) + "/case.safetensors");
    const std::vector<double> mask = reference.contains("in.attention_mask") ? reference.at("in.attention_mask").at : std::vector<double>{};
    const Tensors got = run_case(name, "bf16");
    ASSERT_TRUE(got.contains("logits"));
    const double logits = distance(got.at("logits"), reference.at("out.logits"), mask) / theirs("logits_rel_l2");
    Distance all;
    for (const auto& [key, expected] : reference) {
      if (key.starts_with("grad.")) all.add(got.at(key), expected);
    }
    const double gradients = all.relative() / theirs("grad_rel_l2");
    std::printf("  %-28s ours / theirs: logits %.3f, gradients %.3f\n", name.c_str(), logits, gradients);
    EXPECT_LT(logits, 1.5);
    EXPECT_LT(gradients, 1.5);
    expect_same_best(got.at("logits"), reference.at("out.logits"), mask, theirs("logits_rel_l2"));
    log_logits += std::log(logits);
    log_gradients += std::log(gradients);
    ++num_cases;
  }
  ASSERT_GE(num_cases, 6);
  std::printf("  geometric mean over %d cases: logits %.3f, gradients %.3f\n", num_cases, std::exp(log_logits / num_cases),
              std::exp(log_gradients / num_cases));
  EXPECT_LT(std::exp(log_logits / num_cases), 1.05);
  EXPECT_LT(std::exp(log_gradients / num_cases), 1.05);
}

// The fused head gives what the plain one gives.
TEST_P(GpuGolden, WithoutLogits) {
  const Tensors plain = run("f64"), fused = run("f64", {"--no-logits"});
  ASSERT_TRUE(plain.contains("logits") && !fused.contains("logits") && fused.contains("loss"));
  EXPECT_NEAR(fused.at("loss").at.at(0), plain.at("loss").at.at(0), 1e-12);
  Distance all;
  for (const auto& [key, values] : plain) {
    if (key.starts_with("grad.")) all.add(fused.at(key), values);
  }
  if (facts_["valid"] == 0)
    EXPECT_EQ(all.difference, 0);
  else
    EXPECT_LT(all.relative(), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuGolden, ::testing::ValuesIn(golden_text_cases()), [](const auto& test) { return test.param; });

TEST(GpuProgram, GreedyGenerationIsTokenIdentical) {
  if (std::string why; !cuda_available(why)) GTEST_SKIP() << "skipped: no CUDA device (" << why << ")";
  const std::string inputs = golden_folder("text_tiny") + "/case.safetensors";
  const std::vector<double> expected = read_tensors(inputs).at("out.generated").at;
  const ProgramResult result = run_glim({"generate", golden_folder("text_tiny"), "--inputs", inputs, "-n", std::to_string(expected.size()),
                                         "--dtype", "f32", "--backend", "cuda", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["tokens"].get<std::vector<double>>(), expected);
}

TEST(GpuProgram, CheckRunsEveryStepOnBothBackends) {
  if (std::string why; !cuda_available(why)) GTEST_SKIP() << "skipped: no CUDA device (" << why << ")";
  const ProgramResult result = run_glim({"check", "muse_glimmer_tiny", "--set", "num_layers=2", "--backend", "cuda"});
  std::printf("%s", result.out.c_str());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("bf16: steps out of bounds"), std::string::npos);
}

// A bf16 run on the device follows an f32 run on the CPU; the same run twice, and a run that goes on from step 77, have the same bits.
// The settings keep training calm: where it is not, rounding grows until two f32 runs on different machines are per cents apart, too.
TEST(GpuProgram, TrainingFollowsTheCpu) {
  if (std::string why; !cuda_available(why)) GTEST_SKIP() << "skipped: no CUDA device (" << why << ")";
  const ScratchFolder scratch;
  std::vector<std::filesystem::path> sources;
  for (const char* folder : {"engine", "ops", "autodiff", "models", "runtime"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(models_source_folder() + "/../" + folder)) {
      if (entry.path().extension() == ".cpp" || entry.path().extension() == ".h") sources.push_back(entry.path());
    }
  }
  std::sort(sources.begin(), sources.end());
  std::string text;
  for (const auto& source : sources) text += read_file(source.string());
  write_file(scratch / "corpus.txt", text);
  const auto train = [&](const std::string& backend, const std::string& dtype, const std::string& output) {
    write_file(scratch / "train.toml",
               "model = \"muse_glimmer_tiny\"\n[data]\ntext = [\"corpus.txt\"]\n[train]\nsteps = 200\ntokens = 1024\nlearning_rate = 3e-4\n"
               "log_every = 1\ndtype = \"" +
                   dtype + "\"\noutput = \"" + output + "\"\n[checkpoint]\nevery = 77\n");
    const ProgramResult result = run_glim({"train", scratch / "train.toml", "--backend", backend, "--json", "--resume", "auto"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<double> losses;
    for (size_t at = 0; at < result.out.size(); at = result.out.find('\n', at) + 1) {
      const nlohmann::json line = nlohmann::json::parse(result.out.substr(at, result.out.find('\n', at) - at));
      if (line.contains("loss")) losses.push_back(line["loss"].get<double>());
    }
    return losses;
  };
  const std::vector<double> expected = train("cpu", "f32", "cpu"), found = train("cuda", "bf16", "first"),
                            again = train("cuda", "bf16", "second");
  ASSERT_EQ(expected.size(), 200U);
  ASSERT_EQ(found.size(), 200U);
  EXPECT_LT(found.back(), 0.7 * found.front());
  double worst = 0;
  for (size_t step = 20; step <= 200; step += 20) worst = std::max(worst, std::fabs(found[step - 1] / expected[step - 1] - 1));
  std::printf("  loss %.4f -> %.4f (CPU, f32: %.4f -> %.4f); at every 20th step at most %.2f %% apart\n", found.front(), found.back(),
              expected.front(), expected.back(), 100 * worst);
  EXPECT_LT(worst, 0.01);
  EXPECT_EQ(found, again);
  EXPECT_EQ(read_folder(scratch / "first/model"), read_folder(scratch / "second/model"));

  std::filesystem::create_directories(scratch / "third/checkpoints");
  std::filesystem::copy(scratch / "first/checkpoints/step-00000077", scratch / "third/checkpoints/step-00000077",
                        std::filesystem::copy_options::recursive);
  const std::vector<double> resumed = train("cuda", "bf16", "third");
  ASSERT_EQ(resumed.size(), 123U);
  EXPECT_TRUE(std::equal(resumed.begin(), resumed.end(), found.begin() + 77));
  EXPECT_EQ(read_folder(scratch / "first/model"), read_folder(scratch / "third/model"));
}

TEST(GpuProgram, BenchTimesTheOps) {
  if (std::string why; !cuda_available(why)) GTEST_SKIP() << "skipped: no CUDA device (" << why << ")";
  const ProgramResult result = run_glim({"bench", "step", "muse_glimmer_tiny", "--backend", "cuda", "--dtype", "bf16", "--tokens", "512"});
  std::printf("%s", result.out.c_str());
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

}  // namespace
}  // namespace glim
