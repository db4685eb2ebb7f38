// `glim run` and `glim generate` with --backend cuda against the reference cases made from transformers in float64.
#include <cstdio>
#include <numeric>

#include "runtime/device.h"
#include "tests/cli/golden_case.h"

namespace glim {
namespace {

class GpuGolden : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (std::string why; !cuda_available(why)) GTEST_SKIP() << "skipped: no CUDA device (" << why << ")";
  }
  [[nodiscard]] Tensors run(const std::string& dtype, std::vector<std::string> more = {}) const {
    const ScratchFolder scratch;
    std::vector<std::string> arguments{"run",       golden_folder(GetParam()),
                                       "--inputs",  golden_folder(GetParam()) + "/case.safetensors",
                                       "--outputs", scratch / "out",
                                       "--grad",    "--dtype",
                                       dtype,       "--backend",
                                       "cuda"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = run_glim(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.exit_code == 0 ? read_tensors(scratch / "out") : Tensors{};
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

// Not much further away than transformers' own bf16 runs.
TEST_P(GpuGolden, BF16) {
  if (facts_["valid"] == 0 || !facts_.contains("hf_bf16_eager_grad_rel_l2"))
    GTEST_SKIP() << "the reference's own bf16 error is not recorded";
  const auto theirs = [&](const std::string& what) {
    return std::max(facts_["hf_bf16_eager_" + what].get<double>(), facts_["hf_bf16_sdpa_" + what].get<double>());
  };
  const Tensors got = run("bf16");
  ASSERT_TRUE(got.contains("logits"));
  const double logits = distance(got.at("logits"), reference_.at("out.logits"), mask());
  Distance gradients;
  for (const auto& [key, expected] : reference_) {
    if (key.starts_with("grad.")) gradients.add(got.at(key), expected);
  }
  std::printf("  %s bf16 / transformers' bf16: logits %.3f, gradients %.3f\n", GetParam().c_str(), logits / theirs("logits_rel_l2"),
              gradients.relative() / theirs("grad_rel_l2"));
  EXPECT_LT(logits, 1.5 * theirs("logits_rel_l2"));
  EXPECT_LT(gradients.relative(), 1.5 * theirs("grad_rel_l2"));
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

// A bf16 run on the device follows an f32 run on the CPU, as averages of 20 steps, and the same run twice has the same bits. Not closer:
// training amplifies rounding, so that at these settings two f32 runs on different machines are 6 % apart at single steps.
TEST(GpuProgram, TrainingFollowsTheCpu) {
  if (std::string why; !cuda_available(why)) GTEST_SKIP() << "skipped: no CUDA device (" << why << ")";
  const ScratchFolder scratch;
  std::string text;
  for (const char* file : {"README.md", "engine/README.md", "ops/README.md", "runtime/README.md", "cli/README.md", "tests/README.md"})
    text += read_file(models_source_folder() + "/../" + file);
  write_file(scratch / "corpus.txt", text);
  const auto train = [&](const std::string& backend, const std::string& dtype, const std::string& output) {
    write_file(scratch / "train.toml",
               "model = \"muse_glimmer_tiny\"\n[data]\ntext = [\"corpus.txt\"]\n[train]\nsteps = 200\ntokens = 256\nlearning_rate = 1e-3\n"
               "log_every = 1\ndtype = \"" +
                   dtype + "\"\noutput = \"" + output + "\"\n");
    const ProgramResult result = run_glim({"train", scratch / "train.toml", "--backend", backend, "--json"});
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
  for (size_t first = 0; first < 200; first += 20) {
    const auto average = [&](const std::vector<double>& losses) {
      return std::accumulate(losses.begin() + static_cast<long>(first), losses.begin() + static_cast<long>(first) + 20, 0.0) / 20;
    };
    worst = std::max(worst, std::fabs(average(found) - average(expected)) / average(expected));
  }
  std::printf("  loss %.4f -> %.4f (CPU, f32: %.4f -> %.4f); worst average of 20 steps %.2f %% apart\n", found.front(), found.back(),
              expected.front(), expected.back(), 100 * worst);
  EXPECT_LT(worst, 0.03);
  EXPECT_EQ(found, again);
  EXPECT_EQ(read_folder(scratch / "first/model"), read_folder(scratch / "second/model"));
}

TEST(GpuProgram, BenchTimesTheOps) {
  if (std::string why; !cuda_available(why)) GTEST_SKIP() << "skipped: no CUDA device (" << why << ")";
  const ProgramResult result = run_glim({"bench", "step", "muse_glimmer_tiny", "--backend", "cuda", "--dtype", "bf16", "--tokens", "512"});
  std::printf("%s", result.out.c_str());
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

}  // namespace
}  // namespace glim
