#include "models/hf_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "models/build.h"
#include "models/names.h"
#include "ops/builtin_ops.h"

namespace glim {
namespace {

const std::string kModels = std::string(GLIM_SOURCE_DIR) + "/models";
const std::string kGolden = std::string(GLIM_SOURCE_DIR) + "/tests/golden/";

std::string golden_config(const std::string& name) {
  std::ifstream stream(kGolden + name + "/config.json");
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

Result<ModelSpec> from_text(const std::string& json, const std::string& model = "muse_glimmer.toml") {
  Result<ModelSpec> base = load_spec(kModels + "/" + model);
  return base ? fill_from_hf_config(*base, json, "config.json") : std::move(base);
}

std::string error_of(const std::string& json, const std::string& model = "muse_glimmer.toml") {
  const Result<ModelSpec> spec = from_text(json, model);
  return spec ? "accepted" : spec.error().to_string();
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// window, and whether RoPE is on, of each layer
std::vector<std::pair<int64_t, bool>> layers_of(const ModelSpec& spec) {
  BuildOptions options;
  options.runtime_dims = {{"T", 8}, {"G", 1}};
  options.outputs = {"loss"};
  const Result<BuiltModel> built = build(spec, builtin_ops(), options);
  EXPECT_TRUE(built) << built.error().to_string();
  std::vector<std::pair<int64_t, bool>> layers;
  if (!built) return layers;
  for (uint32_t n = 0; n < built->graph.num_nodes(); ++n) {
    const OpDef& def = built->graph.def({n});
    if (def.name != "attention") continue;
    for (size_t k = 0; k < def.attrs.size(); ++k) {
      if (def.attrs[k].name != "window") continue;
      const ValueId q = built->graph.inputs({n})[0];
      layers.emplace_back(integer_at(built->graph.attr_words({n}), k), built->graph.def(built->graph.producer(q)).name == "rope");
    }
  }
  return layers;
}

TEST(HfConfig, EveryGoldenTextCaseFillsTheModel) {
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kGolden)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("text_", 0) != 0) continue;
    const Result<ModelSpec> spec = spec_from_hf_config(entry.path().string() + "/config.json", kModels);
    ASSERT_TRUE(spec) << spec.error().to_string();
    EXPECT_EQ(std::filesystem::path(spec->file).filename(), "muse_glimmer.toml");
    const size_t layers = name == "text_mqa_8layer" ? 8 : 4;
    const int64_t window = name == "text_mqa_8layer" ? 16 : name == "text_long_packed" ? 100 : 8;
    const auto found = layers_of(*spec);
    ASSERT_EQ(found.size(), layers) << name;
    for (size_t l = 0; l < layers; ++l) EXPECT_EQ(found[l], (l % 4 == 3 ? std::pair(int64_t{0}, false) : std::pair(window, true)));
    const Result<std::vector<ModelParameter>> parameters = list_parameters(*spec);
    ASSERT_TRUE(parameters);
    EXPECT_EQ(parameters->size(), layers * 12 + (name == "text_tied" ? 2 : 3));
    ++cases;
  }
  EXPECT_EQ(cases, 7);
}

TEST(HfConfig, FillsEveryName) {
  const Result<ModelSpec> spec = from_text(golden_config("text_long_packed"));
  ASSERT_TRUE(spec) << spec.error().to_string();
  Names names(*spec);
  const auto value = [&](std::string_view name) { return std::get<Number>(*names.look_up(name, {})).real; };
  EXPECT_EQ(value("vocab"), 384);
  EXPECT_EQ(value("hidden"), 96);
  EXPECT_EQ(value("feed_forward"), 144);
  EXPECT_EQ(value("kv_width"), 32);
  EXPECT_EQ(value("output_multiplier"), 0.4082482904638631);
  EXPECT_EQ(value("rope_theta"), 10000.0);
  EXPECT_EQ(value("padding_index"), 0);
}

TEST(HfConfig, FollowsBothLayerArraysIndependently) {
  std::string json = golden_config("text_tiny");
  json = replaced(json, "10000.0,\n   10000.0,\n   10000.0,\n   0\n", "10000.0, 0, 10000.0, 10000.0");
  const Result<ModelSpec> spec = from_text(json);
  ASSERT_TRUE(spec) << spec.error().to_string();
  const std::vector<std::pair<int64_t, bool>> expected{{8, true}, {8, false}, {8, true}, {0, true}};
  EXPECT_EQ(layers_of(*spec), expected);
}

// TRL's tiny model: almost everything small, the vocabulary as released.
TEST(HfConfig, TinyTestConfig) {
  const Result<ModelSpec> spec =
      from_text(R"({"model_type": "muse_glimmer", "text_config": {"vocab_size": 202048, "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 2048, "rms_norm_eps": 1e-05,
    "post_norm_eps": 1e-08, "qk_scale_factor": 3.87, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}, "output_multiplier": 0.19611613513818404,
    "final_logit_softcapping": 20.0, "pad_token_id": null, "layer_types": ["sliding_attention", "full_attention"], "layer_rope_theta": [500000.0, 0]}})");
  ASSERT_TRUE(spec) << spec.error().to_string();
  const std::vector<std::pair<int64_t, bool>> expected{{2048, true}, {0, false}};
  EXPECT_EQ(layers_of(*spec), expected);
  const Result<std::vector<ModelParameter>> parameters = list_parameters(*spec);
  ASSERT_TRUE(parameters);
  EXPECT_EQ(num_elements(*parameters), 2 * 202048 * 16 + 16 + 2 * (3 * 32 * 16 + 2 * 16 * 16 + 3 * 32 * 16 + 4 * 16));
  Names names(*spec);
  EXPECT_EQ(std::get<Number>(*names.look_up("padding_index", {})).integer, -1);
}

TEST(HfConfig, WithoutLayerArraysThePatternOfTheFileHolds) {
  std::string json = golden_config("text_mqa_8layer");
  json = replaced(json, "\"layer_types\"", "\"old_layer_types\"");
  json = replaced(json, "\"layer_rope_theta\"", "\"old_layer_rope_theta\"");
  const Result<ModelSpec> spec = from_text(json);
  ASSERT_TRUE(spec) << spec.error().to_string();
  EXPECT_EQ(layers_of(*spec), layers_of(*from_text(golden_config("text_mqa_8layer"))));
}

TEST(HfConfig, ErrorsNameTheKey) {
  const std::string good = golden_config("text_tiny");
  EXPECT_EQ(error_of(good), "accepted");
  EXPECT_EQ(error_of(replaced(good, "\"silu\"", "\"gelu\"")),
            "config.json: 'text_config.hidden_activation' is \"gelu\"; this model supports only \"silu\"");
  EXPECT_EQ(error_of(replaced(good, "\"attention_bias\": false", "\"attention_bias\": true")),
            "config.json: 'text_config.attention_bias' is true; this model supports only false");
  EXPECT_EQ(error_of(replaced(good, "\"head_dim\": 16,", "")), "config.json: 'text_config.head_dim' is missing; it sets 'head_dim'");
  EXPECT_EQ(error_of(replaced(good, "\"head_dim\": 16", "\"head_dim\": -16")),
            "config.json: 'text_config.head_dim' must be an integer from 1 to 2147483647, not -16");
  EXPECT_EQ(error_of(replaced(good, "\"head_dim\": 16", "\"head_dim\": 1e3")),
            "config.json: 'text_config.head_dim' must be an integer from 1 to 2147483647, not 1000.0");
  EXPECT_EQ(error_of(replaced(good, "\"head_dim\": 16", "\"head_dim\": 18446744073709551615")),
            "config.json: 'text_config.head_dim' must be an integer from 1 to 2147483647, not 18446744073709551615");
  EXPECT_EQ(error_of(replaced(good, "\"qk_scale_factor\": 3.87", "\"qk_scale_factor\": \"3.87\"")),
            "config.json: 'text_config.qk_scale_factor' must be a number, not \"3.87\"");
  EXPECT_EQ(error_of(replaced(good, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 0")),
            "config.json: 'text_config.tie_word_embeddings' must be true or false, not 0");
  EXPECT_EQ(
      error_of(replaced(good, "\"full_attention\"", "\"chunked_attention\"")),
      "config.json: 'text_config.layer_types[3]' is \"chunked_attention\"; this model supports only sliding_attention, full_attention");
  EXPECT_EQ(
      error_of(replaced(good, "   10000.0,\n   0\n", "   5000.0,\n   0\n")),
      "config.json: 'text_config.layer_rope_theta[2]' is 5000.0, but 'rope_theta' of the whole model is 10000: layer 2 is inconsistent");
  EXPECT_EQ(error_of(replaced(good, "   10000.0,\n   0\n", "   0\n")),
            "config.json: 'text_config.layer_rope_theta' has 3 elements, but the model has 4 layers");
  EXPECT_EQ(error_of(replaced(good, "\"head_dim\": 16", "\"head_dim\": 16, \"head_dim\": 32")),
            "config.json: bad JSON: the key 'head_dim' appears twice in one object");
  EXPECT_EQ(error_of("{\"model_type\": \"muse_glimmer\"").rfind("config.json: bad JSON: byte ", 0), 0U);
  EXPECT_EQ(error_of("[]"), "config.json: a config is a JSON object");
  EXPECT_EQ(error_of("{}"), "config.json: 'model_type' is missing; it chooses the model file");
  EXPECT_EQ(error_of("{\"model_type\": \"muse_glimmer\", \"x\": " + std::string(1'000'000, '[') + "}"),
            "config.json: bad JSON: nested deeper than 32 levels");
  EXPECT_EQ(error_of(good, "llama.toml").find("config.json: 'model_type' is 'muse_glimmer', but "), 0U);
}

TEST(HfConfig, ChoosesTheFileByModelType) {
  const std::string file = testing::TempDir() + "config.json";
  std::ofstream(file) << R"({"model_type": "lama"})";
  const Result<ModelSpec> wrong = spec_from_hf_config(file, kModels);
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message.find("describes model_type 'lama' (there are: llama, muse_glimmer); did you mean 'llama'?"),
            std::string::npos);
  std::ofstream(file) << R"({"model_type": "llama", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "rope_theta": 1234.0, "tie_word_embeddings": true, "rope_scaling": null, "hidden_act": "silu"})";
  const Result<ModelSpec> spec = spec_from_hf_config(file, kModels);
  ASSERT_TRUE(spec) << spec.error().to_string();
  Names names(*spec);
  EXPECT_EQ(std::get<Number>(*names.look_up("head_dim", {})).integer, 8);
  EXPECT_EQ(std::get<Number>(*names.look_up("num_kv_heads", {})).integer, 4);
  EXPECT_EQ(std::get<Number>(*names.look_up("rope_theta", {})).real, 1234.0);
  EXPECT_EQ(std::get<bool>(*names.look_up("tie_word_embeddings", {})), true);
  EXPECT_EQ(layers_of(*spec).size(), 3U);
  std::ofstream(file) << R"({"model_type": "llama", "rope_scaling": {"factor": 8.0}})";
  EXPECT_EQ(spec_from_hf_config(file, kModels).error().message, "'rope_scaling' is {\"factor\":8.0}; this model supports only null");
  EXPECT_EQ(spec_from_hf_config(testing::TempDir() + "none.json", kModels).error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace glim
