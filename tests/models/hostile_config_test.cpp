// Hostile config.json files of Hugging Face: every wrong one names the key and what was expected, quickly and with little memory.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "models/build.h"
#include "models/hf_config.h"
#include "ops/builtin_ops.h"
#include "tests/resource_bounds.h"

namespace glim {
namespace {

std::string read(const std::string& name) {
  std::ifstream in(std::string(GLIM_SOURCE_DIR "/") + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Change {
  std::string from, to, error;  // replaces the first `from` of a good configuration; `error` is part of the message
};

std::string with(std::string text, const Change& change) {
  const size_t at = text.find(change.from);
  EXPECT_NE(at, std::string::npos) << change.from;
  return at == std::string::npos ? text : text.replace(at, change.from.size(), change.to);
}

// Fills the model and builds it; layers that do not exist and sizes that do not fit are seen only then.
std::string error_of(const ModelSpec& model, const std::string& text) {
  const Result<ModelSpec> spec = fill_from_hf_config(model, text, "config.json");
  if (!spec) return spec.error().to_string();
  BuildOptions options;
  options.outputs = {"loss"};
  for (const RuntimeDim& dim : spec->runtime_dims) options.runtime_dims[dim.name.text] = 2;
  const Result<BuiltModel> built = build(*spec, builtin_ops(), options);
  return built ? "accepted" : built.error().to_string();
}

void expect_errors(const std::string& model_file, const std::string& config, const std::vector<Change>& changes) {
  const Result<ModelSpec> model = load_spec(std::string(GLIM_SOURCE_DIR "/models/") + model_file);
  ASSERT_TRUE(model);
  const std::string good = read(config);
  EXPECT_EQ(error_of(*model, good), "accepted");
  for (const Change& change : changes) {
    const std::string text = with(good, change);
    const std::string error = bounded([&] { return error_of(*model, text); });
    EXPECT_NE(error.find(change.error), std::string::npos) << error << "\nfor " << change.to.substr(0, 100);
    EXPECT_LT(error.size(), 1000U);
  }
}

std::string integer_error(const std::string& key, const std::string& value) {
  return "config.json: '" + key + "' must be an integer from 1 to 2147483647, not " + value;
}

TEST(HostileConfig, MuseGlimmer) {
  const std::string head_dim = R"("head_dim": 16)", layers = R"("num_hidden_layers": 4)", softcap = R"("final_logit_softcapping": 20.0)",
                    tie = R"("tie_word_embeddings": false)", pad = R"("pad_token_id": 0)";
  const auto deep = [](size_t times, const char* unit) {
    std::string text;
    for (size_t k = 0; k < times; ++k) text += unit;
    return text;
  };
  std::string many_types = "[\"full_attention\"";
  for (int k = 0; k < 150'000; ++k) many_types += ",\"full_attention\"";
  std::string too_many_values = "[0";
  for (int k = 0; k < 300'000; ++k) too_many_values += ",[]";
  const std::string path = "text_config.";
  expect_errors(
      "muse_glimmer.toml", "tests/golden/text_tiny/config.json",
      {{head_dim, R"("head_dim": "16")", integer_error(path + "head_dim", "\"16\"")},
       {head_dim, R"("head_dim": [16])", integer_error(path + "head_dim", "[16]")},
       {head_dim, R"("head_dim": {})", integer_error(path + "head_dim", "{}")},
       {head_dim, R"("head_dim": true)", integer_error(path + "head_dim", "true")},
       {head_dim, R"("head_dim": null)", "config.json: 'text_config.head_dim' is missing"},
       {head_dim, R"("head_dim": 16.0)", integer_error(path + "head_dim", "16.0")},
       {head_dim, R"("head_dim": 0)", integer_error(path + "head_dim", "0")},
       {head_dim, R"("head_dim": -9223372036854775808)", integer_error(path + "head_dim", "-9223372036854775808")},
       {head_dim, R"("head_dim": 2147483648)", integer_error(path + "head_dim", "2147483648")},
       {head_dim, R"("head_dim": 9223372036854775808)", integer_error(path + "head_dim", "9223372036854775808")},
       {head_dim, R"("head_dim": 1e999)", "config.json: bad JSON: "},
       {head_dim, R"("head_dim": 16e)", "config.json: bad JSON: byte "},
       {head_dim, "\"head_dim\": " + std::string(100'000, '9'), "config.json: "},
       {head_dim, R"("head_dim": 2147483647)", "'num_heads * head_dim' = 8589934588"},
       {head_dim, "\"head_dim\": \"" + std::string(1'000'000, 'x') + "\"", integer_error(path + "head_dim", "\"xxx")},
       {layers, R"("num_hidden_layers": 10001)", "the layer count of 'decoder' must be at most 10000, not 10001"},
       {layers, R"("num_hidden_layers": 2147483647)", "must be at most 10000, not 2147483647"},
       {layers, R"("num_hidden_layers": 5)", "has 4 elements, but the model has 5 layers"},
       {softcap, R"("final_logit_softcapping": "20")", "'text_config.final_logit_softcapping' must be a number, not \"20\""},
       {softcap, R"("final_logit_softcapping": false)", "must be a number, not false"},
       {softcap, R"("final_logit_softcapping": NaN)", "bad JSON: byte "},
       {softcap, R"("final_logit_softcapping": Infinity)", "bad JSON: byte "},
       {softcap, R"("final_logit_softcapping": 18446744073709551616)", "accepted"},
       {tie, R"("tie_word_embeddings": "false")", "'text_config.tie_word_embeddings' must be true or false, not \"false\""},
       {tie, R"("tie_word_embeddings": [])", "must be true or false, not []"},
       {pad, R"("pad_token_id": "0")", "'text_config.pad_token_id' must be a number, not \"0\""},
       {pad, R"("pad_token_id": [0, 1])", "must be a number, not [0,1]"},
       {R"("model_type": "muse_glimmer")", R"("model_type": 7)", "'model_type' is missing; it chooses the model file"},
       {R"("model_type": "muse_glimmer")", R"("model_type": ["muse_glimmer"])", "'model_type' is missing"},
       {R"("model_type": "muse_glimmer")", R"("model_type": "MUSE_GLIMMER")", "'model_type' is 'MUSE_GLIMMER', but "},
       {R"("text_config": {)", R"("text_config": [], "was": {)", "'text_config.vocab_size' is missing"},
       {R"("text_config": {)", R"("text_config": 5, "was": {)", "'text_config.vocab_size' is missing"},
       {R"("text_config": {)", R"("was": {)", "'text_config.vocab_size' is missing"},
       {R"("rope_parameters": {)", R"("rope_parameters": null, "was": {)", "'text_config.rope_parameters.rope_theta' is missing"},
       {R"("rope_parameters": {)", R"("rope_parameters": {"rope_type": "yarn"}, "was": {)",
        "'text_config.rope_parameters.rope_type' is \"yarn\""},
       {R"("layer_types": [)", R"("layer_types": "full_attention", "was": [)", "must be an array with one element per layer"},
       {R"("layer_types": [)", R"("layer_types": {}, "was": [)", "must be an array with one element per layer, not {}"},
       {R"("layer_types": [)", R"("layer_types": [], "was": [)", "has 0 elements, but the model has 4 layers"},
       {R"("layer_types": [)", "\"layer_types\": " + many_types + "], \"was\": [", "has 150001 elements, but the model has 4 layers"},
       {R"("layer_types": [)", "\"layer_types\": " + too_many_values + "], \"was\": [", "it has more than 200000 values"},
       {R"("sliding_attention",)", R"(["sliding_attention"],)",
        "'text_config.layer_types[0]' is [\"sliding_attention\"]; this model supports only"},
       {R"("sliding_attention",)", R"(null,)", "'text_config.layer_types[0]' is null"},
       {R"("layer_rope_theta": [)", R"("layer_rope_theta": [true, 0, 0, 0], "was": [)",
        "'text_config.layer_rope_theta[0]' must be a number, not true"},
       {R"("layer_rope_theta": [)", R"("layer_rope_theta": ["0", 0, 0, 0], "was": [)", "must be a number, not \"0\""},
       {"{", "\xef\xbb\xbf{", "accepted"},  // the library skips a byte order mark
       {"{", std::string("{\0", 2), "it has a NUL byte"},
       {"{", "{\"a\xff\": 1,", "bad JSON: byte "},
       {"{", R"({"head_dim": 1, "head_dim": 2,)", "the key 'head_dim' appears twice"},
       {"{", "{\"x\": " + deep(500'000, "[") + ",", "nested deeper than 32 levels"},
       {"{", deep(200'000, "{\"x\": "), "nested deeper than 32 levels"},
       {"{", "{,", "bad JSON: byte "},
       {"{", "{// a comment\n", "bad JSON: byte "},
       {"{", "", "bad JSON: byte "}});
}

TEST(HostileConfig, Llama) {
  expect_errors("llama.toml", "tests/golden/llama_untied/config.json",
                {{"\"num_attention_heads\":", "\"num_attention_heads\": 7, \"was\":",
                  "attention: num_heads (7) must be a positive multiple of num_kv_heads (2)"},
                 {"\"hidden_size\":", "\"hidden_size\": 2147483647, \"was\":", "accepted"},
                 {"\"vocab_size\":", "\"vocab_size\": 2147483647, \"was\":", "accepted"},
                 {"\"vocab_size\":", "\"vocab_size\": -1, \"was\":", integer_error("vocab_size", "-1")},
                 {"\"rms_norm_eps\":", "\"rms_norm_eps\": \"1e-6\", \"was\":", "'rms_norm_eps' must be a number, not \"1e-6\""},
                 {"\"hidden_act\":", "\"hidden_act\": \"gelu\", \"was\":", "'hidden_act' is \"gelu\"; this model supports only \"silu\""},
                 {"\"hidden_act\":", "\"hidden_act\": [\"silu\"], \"was\":", "'hidden_act' is [\"silu\"]"},
                 {"\"attention_bias\":", "\"attention_bias\": 0, \"was\":", "'attention_bias' is 0; this model supports only false"}});
}

// Any prefix, and any single byte changed to one of a few others: an error or a model, never a crash.
TEST(HostileConfig, DamagedText) {
  const Result<ModelSpec> model = load_spec(GLIM_SOURCE_DIR "/models/llama.toml");
  ASSERT_TRUE(model);
  const std::string good = read("tests/golden/llama_untied/config.json");
  for (size_t length = 0; length < good.size() - 2; ++length) {
    const Result<ModelSpec> spec = fill_from_hf_config(*model, std::string_view(good).substr(0, length), "config.json");
    ASSERT_FALSE(spec) << length;
    EXPECT_EQ(spec.error().code, ErrorCode::kInvalidFile);
  }
  for (size_t at = 0; at < good.size(); ++at) {
    for (const char c : {'\0', '"', '}', '9', '-', '\xff'}) {
      std::string text = good;
      text[at] = c;
      const Result<ModelSpec> spec = fill_from_hf_config(*model, text, "config.json");
      EXPECT_TRUE(spec || !spec.error().message.empty());
    }
  }
}

}  // namespace
}  // namespace glim
