// `glim run` and `glim generate` against reference cases made from transformers in float64.
#include <filesystem>

#include "runtime/safetensors.h"
#include "tests/cli/golden_case.h"

namespace glim {
namespace {

Tensors run_case(const std::string& name, const std::string& inputs, std::vector<std::string> options,
                 const std::map<std::string, std::string>& environment = {}) {
  const ScratchFolder scratch;
  std::vector<std::string> arguments{"run", golden_folder(name), "--inputs", inputs, "--outputs", scratch / "out.safetensors"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  const ProgramResult result = run_glim(arguments, environment);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.exit_code == 0 ? read_tensors(scratch / "out.safetensors") : Tensors{};
}
Tensors run_case(const std::string& name, const std::vector<std::string>& options) {
  return run_case(name, golden_folder(name) + "/case.safetensors", options);
}

class GoldenText : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string& name() const { return GetParam(); }
  nlohmann::json facts_ = read_case(GetParam());
  Tensors reference_ = read_tensors(golden_folder(GetParam()) + "/case.safetensors");
  std::vector<double> mask() const {
    return reference_.contains("in.attention_mask") ? reference_.at("in.attention_mask").at : std::vector<double>{};
  }

  void expect_counts(const Tensors& got) const {
    EXPECT_EQ(got.at("num_correct").at.at(0), facts_["correct"].get<double>());
    EXPECT_EQ(got.at("num_valid").at.at(0), facts_["valid"].get<double>());
    EXPECT_NEAR(got.at("token_accuracy").at.at(0), facts_["token_accuracy"].get<double>(), 1e-7);
  }
  void expect_close(const std::string& dtype, double logits, double gradient, double loss, double hidden) const {
    const Tensors got = run_case(name(), {"--grad", "--hidden", "--dtype", dtype});
    ASSERT_TRUE(got.contains("logits") && got.contains("loss"));
    expect_counts(got);
    EXPECT_LT(distance(got.at("logits"), reference_.at("out.logits"), mask()), logits);
    for (const auto& [key, expected] : with_prefix(reference_, "out.hidden.")) {
      ASSERT_TRUE(got.contains(key.substr(4))) << key;
      EXPECT_LT(distance(got.at(key.substr(4)), expected, mask()), hidden) << key;
    }
    const Tensors gradients = with_prefix(got, "grad."), expected_gradients = with_prefix(reference_, "grad.");
    if (facts_["valid"] == 0) {
      EXPECT_EQ(got.at("loss").at.at(0), 0);
      EXPECT_EQ(got.at("token_accuracy").at.at(0), 0);
      Tensors parameters;
      for (const auto& [key, values] : read_tensors(golden_folder(name()) + "/model.safetensors")) parameters["grad." + key] = values;
      ASSERT_EQ(names_of(gradients), names_of(parameters));
      for (const auto& [key, values] : gradients) {
        ASSERT_EQ(values.shape, parameters.at(key).shape) << key;
        EXPECT_TRUE(std::all_of(values.at.begin(), values.at.end(), [](double value) { return value == 0; })) << key;
      }
      return;
    }
    EXPECT_NEAR(got.at("loss").at.at(0), facts_["loss"].get<double>(), loss);
    ASSERT_EQ(names_of(gradients), names_of(expected_gradients));
    ASSERT_FALSE(gradients.empty());
    for (const auto& [key, expected] : expected_gradients) EXPECT_LT(distance(gradients.at(key), expected), gradient) << key;
  }
};

TEST_P(GoldenText, F64) { expect_close("f64", 1e-7, 1e-7, 1e-7, 1e-7); }
TEST_P(GoldenText, F32) { expect_close("f32", 1e-5, 5e-5, 5e-6, 1e-5); }

// bf16 storage with f32 arithmetic: not much further away than transformers' own bf16 runs.
TEST_P(GoldenText, BF16) {
  if (facts_["valid"] == 0) GTEST_SKIP() << "the reference has no gradients to be near to";
  if (!facts_.contains("hf_bf16_eager_grad_rel_l2")) GTEST_SKIP() << "the reference's own bf16 error is not recorded";
  const auto bound = [&](const std::string& what) {
    return 1.5 * std::max(facts_["hf_bf16_eager_" + what].get<double>(), facts_["hf_bf16_sdpa_" + what].get<double>());
  };
  const Tensors got = run_case(name(), {"--grad", "--dtype", "bf16"});
  ASSERT_TRUE(got.contains("logits"));
  EXPECT_EQ(got.at("num_valid").at.at(0), facts_["valid"].get<double>());
  EXPECT_LT(distance(got.at("logits"), reference_.at("out.logits"), mask()), bound("logits_rel_l2"));
  const Tensors gradients = with_prefix(got, "grad."), expected = with_prefix(reference_, "grad.");
  ASSERT_EQ(names_of(gradients), names_of(expected));
  Distance all;
  for (const auto& [key, values] : expected) all.add(gradients.at(key), values);
  EXPECT_LT(all.relative(), bound("grad_rel_l2"));
  EXPECT_GT(all.relative(), 1e-5) << "that is no bf16 run";
}

// The fused head, which never holds all logits, gives what the plain one gives.
TEST_P(GoldenText, WithoutLogits) {
  const Tensors plain = run_case(name(), {"--grad", "--dtype", "f64"}),
                fused = run_case(name(), {"--grad", "--no-logits", "--dtype", "f64"});
  ASSERT_TRUE(plain.contains("logits"));
  ASSERT_FALSE(fused.contains("logits"));
  expect_counts(fused);
  EXPECT_NEAR(fused.at("loss").at.at(0), plain.at("loss").at.at(0), 1e-12);
  const Tensors expected = with_prefix(plain, "grad."), got = with_prefix(fused, "grad.");
  ASSERT_EQ(names_of(got), names_of(expected));
  Distance all;
  for (const auto& [key, values] : expected) all.add(got.at(key), values);
  if (facts_["valid"] == 0)
    EXPECT_EQ(all.difference, 0);
  else
    EXPECT_LT(all.relative(), 1e-12);
}

// Inputs by their plain names, without "in.", are the same inputs.
TEST_P(GoldenText, InputsWithoutPrefix) {
  const Result<SafetensorsFile> file = SafetensorsFile::open(golden_folder(name()) + "/case.safetensors");
  ASSERT_TRUE(file);
  std::vector<FileTensor> inputs;
  for (FileTensor tensor : file->tensors()) {
    if (!tensor.spec.name.starts_with("in.")) continue;
    tensor.spec.name = tensor.spec.name.substr(3);
    inputs.push_back(std::move(tensor));
  }
  const ScratchFolder scratch;
  ASSERT_TRUE(write_safetensors(scratch / "plain.safetensors", inputs, std::nullopt));
  const Tensors expected = run_case(name(), {"--dtype", "f64"}), got = run_case(name(), scratch / "plain.safetensors", {"--dtype", "f64"});
  ASSERT_TRUE(expected.contains("logits") && got.contains("logits"));
  EXPECT_EQ(got.at("logits").at, expected.at("logits").at);
  EXPECT_EQ(got.at("loss").at, expected.at("loss").at);
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenText, ::testing::ValuesIn(golden_text_cases()), [](const auto& test) { return test.param; });

TEST(Golden, AllTextCasesAreThere) {
  EXPECT_EQ(golden_text_cases(),
            (std::vector<std::string>{"llama_tied_packed", "llama_untied", "text_all_ignored", "text_left_padded", "text_long_packed",
                                      "text_mqa_8layer", "text_packed", "text_tied", "text_tiny"}));
  EXPECT_EQ(with_prefix(read_tensors(golden_folder("text_tiny") + "/case.safetensors"), "out.hidden.").size(), 4U);
}

TEST(Golden, GreedyGenerationIsTokenIdentical) {
  const std::string inputs = golden_folder("text_tiny") + "/case.safetensors";
  const std::vector<double> expected = read_tensors(inputs).at("out.generated").at;
  for (const char* dtype : {"f64", "f32"}) {
    const ScratchFolder scratch;
    const ProgramResult result = run_glim({"generate", golden_folder("text_tiny"), "--inputs", inputs, "--outputs",
                                           scratch / "new.safetensors", "-n", std::to_string(expected.size()), "--dtype", dtype, "--json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(read_tensors(scratch / "new.safetensors").at("generated").at, expected) << dtype;
    EXPECT_EQ(nlohmann::json::parse(result.out)["tokens"].get<std::vector<double>>(), expected) << dtype;
  }
}

// The comparison notices each mistake that other implementations made: the architecture with one thing changed is far from the case.
class Mistake : public ::testing::TestWithParam<std::array<const char*, 3>> {};
TEST_P(Mistake, IsFarFromTheReference) {
  const auto& [what, right, wrong] = GetParam();
  const ScratchFolder models;
  std::string text = read_file(models_source_folder() + "/muse_glimmer.toml");
  ASSERT_NE(text.find(right), std::string::npos) << "the model file changed: " << right;
  for (size_t at = text.find(right); at != std::string::npos; at = text.find(right, at + std::string_view(wrong).size()))
    text.replace(at, std::string_view(right).size(), wrong);
  write_file(models / "muse_glimmer.toml", text);
  const std::string inputs = golden_folder("text_tiny") + "/case.safetensors";
  const Tensors got = run_case("text_tiny", inputs, {"--dtype", "f64"}, {{"GLIM_MODELS", models.path()}});
  ASSERT_TRUE(got.contains("logits"));
  EXPECT_GT(distance(got.at("logits"), read_tensors(inputs).at("out.logits")), 1e-6) << what;  // ten times the bound of f64
}
using Change = std::array<const char*, 3>;
const Change kMistakes[] = {
    {"LayerNormsScaled", ", weight_offset = 1 }", " }"},
    {"FinalNormCentered", "in = \"x\", weight = \"norm\", eps = \"rms_norm_eps\"",
     "in = \"x\", weight = \"norm\", eps = \"rms_norm_eps\", weight_offset = 1"},
    {"OneOfFourNormsFolded", "weight = \"post_feedforward_layernorm\", eps = \"post_norm_eps\", weight_offset = 1",
     "weight = \"post_feedforward_layernorm\", eps = \"post_norm_eps\""},
    {"PostNormEps", "post_norm_eps = \"text_config.post_norm_eps\"", "post_norm_eps = \"text_config.rms_norm_eps\""},
    {"NoMultiplier", "factor = \"output_multiplier\"", "factor = 1"},
    {"NoSoftcap", "cap = \"final_logit_softcapping\"", "cap = 1000000.0"},
    {"ScaleFoldedIntoTheWeight", "factor = \"qk_scale_factor\"", "factor = 1"},
    {"GateForgotten", "{ out = \"gated\", op = \"sigmoid_gate\", in = \"attended\", gate = \"gate\" }",
     "{ out = \"gated\", op = \"scale\", in = \"attended\", factor = 1 }"},
    {"GateFromTheRawInput", "{ out = \"gate\", op = \"linear\", in = \"a\"", "{ out = \"gate\", op = \"linear\", in = \"x\""},
    {"GatesSwapped", "weight = \"gate_proj\"", "weight = \"up_proj\""},
    {"WindowOneTooSmall", "sliding_attention = \"sliding_window\"", "sliding_attention = \"sliding_window - 1\""},
    {"WindowOneTooLarge", "sliding_attention = \"sliding_window\"", "sliding_attention = \"sliding_window + 1\""},
    {"EverySlidingLayerFull", "window = \"window\"", "window = 0"},
    {"RopeEverywhere", ", when = \"rope\"", ""},
    {"EmbeddingNormForgotten", "{ out = \"x\", op = \"rms_norm\", in = \"rows_of_table\", eps = \"rms_norm_eps\" }",
     "{ out = \"x\", op = \"scale\", in = \"rows_of_table\", factor = 1 }"},
};
INSTANTIATE_TEST_SUITE_P(Golden, Mistake, ::testing::ValuesIn(kMistakes), [](const auto& test) { return std::string(test.param[0]); });

}  // namespace
}  // namespace glim
