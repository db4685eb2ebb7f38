#include "models/build.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "engine/verify.h"
#include "ops/builtin_ops.h"

namespace glim {
namespace {

const std::string kModels = std::string(GLIM_SOURCE_DIR) + "/models/";
const std::string kSpec = std::string(GLIM_SOURCE_DIR) + "/tests/spec/";

ModelSpec load(const std::string& file) {
  Result<ModelSpec> spec = load_spec(file);
  EXPECT_TRUE(spec) << spec.error().to_string();
  return spec ? *std::move(spec) : ModelSpec{};
}

BuildOptions options(std::vector<std::string> outputs = {}) {
  BuildOptions options;
  options.runtime_dims = {{"T", 48}, {"G", 3}, {"R", 2}};
  options.outputs = std::move(outputs);
  return options;
}

std::optional<BuiltModel> build_or_fail(const ModelSpec& spec, const BuildOptions& wanted) {
  Result<BuiltModel> built = build(spec, builtin_ops(), wanted);
  EXPECT_TRUE(built) << built.error().to_string();
  if (!built) return std::nullopt;
  const Status good = verify(built->graph);
  EXPECT_TRUE(good) << good.error().to_string();
  return *std::move(built);
}

std::vector<NodeId> nodes_of(const Graph& graph, std::string_view op) {
  std::vector<NodeId> nodes;
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    if (graph.def({n}).name == op) nodes.push_back({n});
  }
  return nodes;
}

size_t attr_number(const OpDef& def, std::string_view name) {
  for (size_t k = 0; k < def.attrs.size(); ++k) {
    if (def.attrs[k].name == name) return k;
  }
  ADD_FAILURE() << name;
  return 0;
}
int64_t integer_attribute(const Graph& graph, NodeId node, std::string_view name) {
  return integer_at(graph.attr_words(node), attr_number(graph.def(node), name));
}
double real_attribute(const Graph& graph, NodeId node, std::string_view name) {
  return real_at(graph.attr_words(node), attr_number(graph.def(node), name));
}

TEST(Build, ReleasedModelHasItsParameters) {
  const Result<std::vector<ModelParameter>> parameters = list_parameters(load(kModels + "muse_glimmer_30b.toml"), DType::kBF16);
  ASSERT_TRUE(parameters) << parameters.error().to_string();
  EXPECT_EQ(num_elements(*parameters), 27'854'780'928);
  EXPECT_EQ(parameters->size(), 3U + 52U * 12U);
  const auto at = std::find_if(parameters->begin(), parameters->end(),
                               [](const ModelParameter& p) { return p.name == "decoder.7.attention_gate_proj"; });
  ASSERT_NE(at, parameters->end());
  EXPECT_EQ(at->hf_name, "model.language_model.layers.7.self_attn.gate_proj.weight");
  EXPECT_EQ(at->instance, "decoder.7");
  EXPECT_EQ(to_string(at->type), "bf16[4096,6656]");
  EXPECT_EQ(at->init, InitKind::kNormal);
  EXPECT_EQ(at->init_value, 0.02);
  EXPECT_EQ(parameters->front().hf_name, "model.language_model.embed_tokens.weight");
  EXPECT_EQ(parameters->back().hf_name, "lm_head.weight");
}

TEST(Build, EveryModelFileBuilds) {
  int built_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    if (entry.path().extension() != ".toml") continue;
    const ModelSpec spec = load(entry.path().string());
    if (std::any_of(spec.dims.begin(), spec.dims.end(), [](const NamedScalar& d) { return d.value.text == "?"; })) {
      const Result<BuiltModel> built = build(spec, builtin_ops(), options());
      ASSERT_FALSE(built);
      EXPECT_NE(built.error().message.find("is not set"), std::string::npos);
      continue;
    }
    for (const DType real : {DType::kF64, DType::kF32, DType::kBF16}) {
      BuildOptions wanted = options();
      wanted.real = real;
      wanted.optional_inputs = {"denominator"};
      const auto built = build_or_fail(spec, wanted);
      ASSERT_TRUE(built) << entry.path();
      EXPECT_EQ(built->graph.type(built->graph.find_output("loss")).dtype, accumulation_dtype(real));
      EXPECT_EQ(built->graph.type(built->graph.find_output("logits")).dtype, accumulation_dtype(real));
      EXPECT_EQ(built->graph.outputs().size(), 8U);  // per-layer ones are not built unless wanted
      EXPECT_TRUE(built->graph.find_leaf("denominator").valid());
    }
    ++built_files;
  }
  EXPECT_EQ(built_files, 3);
}

TEST(Build, TinyMuseGlimmerFollowsItsPattern) {
  const auto built = build_or_fail(load(kModels + "muse_glimmer_tiny.toml"), options({"loss"}));
  ASSERT_TRUE(built);
  const Graph& graph = built->graph;
  const std::vector<NodeId> attention = nodes_of(graph, "attention");
  ASSERT_EQ(attention.size(), 4U);
  for (size_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(integer_attribute(graph, attention[layer], "window"), layer == 3 ? 0 : 64);
    EXPECT_EQ(integer_attribute(graph, attention[layer], "num_kv_heads"), 2);
    EXPECT_DOUBLE_EQ(real_attribute(graph, attention[layer], "scale"), 1 / std::sqrt(32.0));
    const Origin origin = graph.origin(attention[layer]);
    EXPECT_EQ(graph.text(origin.path), "decoder." + std::to_string(layer));
    EXPECT_EQ(graph.text(origin.file), "muse_glimmer.toml");
    EXPECT_GT(origin.line, 80);
  }
  const std::vector<NodeId> ropes = nodes_of(graph, "rope");
  ASSERT_EQ(ropes.size(), 6U);  // q and k of the three sliding layers
  for (const NodeId node : ropes) EXPECT_NE(graph.text(graph.origin(node).path), "decoder.3");
  EXPECT_EQ(real_attribute(graph, ropes[0], "theta"), 10000.0);
  const std::vector<NodeId> norms = nodes_of(graph, "rms_norm");
  EXPECT_EQ(norms.size(), 1U + 4U * 6U + 1U);
  int centered = 0, tiny_eps = 0, grouped = 0;
  for (const NodeId node : norms) {
    centered += real_attribute(graph, node, "weight_offset") == 1.0 ? 1 : 0;
    tiny_eps += real_attribute(graph, node, "eps") == 1e-8 ? 1 : 0;
    grouped += integer_attribute(graph, node, "group") == 32 ? 1 : 0;
  }
  EXPECT_EQ(centered, 16);
  EXPECT_EQ(tiny_eps, 8);
  EXPECT_EQ(grouped, 8);
  // The skipped rotation passes q through: attention of layer 3 reads the scaled q.
  EXPECT_EQ(graph.def(graph.producer(graph.inputs(attention[3])[0])).name, "scale");
  EXPECT_EQ(graph.def(graph.producer(graph.inputs(attention[2])[0])).name, "rope");
}

TEST(Build, OnlyWhatIsWantedIsBuilt) {
  const ModelSpec spec = load(kModels + "muse_glimmer_tiny.toml");
  BuildOptions wanted = options({"loss", "hidden.1"});
  wanted.runtime_dims.erase("R");  // nobody asks for rows
  const auto training = build_or_fail(spec, wanted);
  ASSERT_TRUE(training);
  EXPECT_TRUE(nodes_of(training->graph, "gather_rows").empty());
  EXPECT_FALSE(training->graph.find_leaf("rows").valid());
  ASSERT_EQ(training->graph.outputs().size(), 2U);
  EXPECT_EQ(training->graph.outputs()[1].name, "hidden.1");
  EXPECT_EQ(training->graph.text(training->graph.origin(training->graph.producer(training->graph.outputs()[1].value)).path), "decoder.1");

  const auto generation = build_or_fail(spec, options({"row_logits"}));
  ASSERT_TRUE(generation);
  EXPECT_TRUE(nodes_of(generation->graph, "cross_entropy").empty());
  EXPECT_FALSE(generation->graph.find_leaf("targets").valid());
  EXPECT_EQ(to_string(generation->graph.type(generation->graph.find_output("row_logits"))), "f32[2,256]");
  // Programs share parameters: the same leaves in the same order.
  ASSERT_EQ(training->parameters.size(), generation->parameters.size());
  for (size_t k = 0; k < training->parameters.size(); ++k) {
    EXPECT_EQ(training->parameters[k].name, generation->parameters[k].name);
    EXPECT_EQ(generation->graph.leaf(generation->parameters[k].value).name, generation->parameters[k].name);
  }
  const auto hidden = build_or_fail(spec, options({"hidden"}));
  ASSERT_TRUE(hidden);
  EXPECT_EQ(hidden->graph.outputs().size(), 4U);
  EXPECT_EQ(hidden->inputs.size(), 3U);

  wanted.outputs = {"row_logits"};
  const Result<BuiltModel> wrong = build(spec, builtin_ops(), wanted);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().message, "runtime dimension 'R' has no value here");
}

TEST(Build, InputsCarryTheirFacts) {
  BuildOptions wanted = options({"loss"});
  const auto built = build_or_fail(load(kModels + "muse_glimmer_tiny.toml"), wanted);
  ASSERT_TRUE(built);
  std::vector<std::string> names;
  for (const ModelInput& input : built->inputs) names.push_back(input.name);
  EXPECT_EQ(names, (std::vector<std::string>{"tokens", "segments", "positions", "targets"}));
  EXPECT_EQ(built->inputs[0].range, std::pair(int64_t{0}, int64_t{255}));
  EXPECT_EQ(to_string(built->inputs[1].type), "i32[4]");
  EXPECT_TRUE(built->inputs[1].ascending);
  EXPECT_EQ(built->inputs[1].derived_from, "segments");
  EXPECT_EQ(built->inputs[3].allow, -100);
  EXPECT_EQ(built->graph.leaf(built->inputs[3].value).kind, LeafKind::kInput);
}

TEST(Build, TiedHeadIsOneLeaf) {
  ModelSpec spec = load(kModels + "llama_tiny.toml");
  const Result<std::vector<ModelParameter>> untied = list_parameters(spec);
  spec.flags[0].value.flag = true;
  const auto built = build_or_fail(spec, options({"loss"}));
  ASSERT_TRUE(built && untied);
  EXPECT_EQ(untied->size(), built->parameters.size() + 1);
  EXPECT_EQ(num_elements(*untied), num_elements(built->parameters) + 256 * 128);
  ASSERT_EQ(built->parameters[0].tied.size(), 1U);
  EXPECT_EQ(built->parameters[0].tied[0].name, "head.lm_head");
  EXPECT_EQ(built->parameters[0].tied[0].hf_name, "lm_head.weight");
  const ValueId table = built->parameters[0].value;
  const NodeId head = nodes_of(built->graph, "linear").back();
  EXPECT_EQ(built->graph.inputs(head)[1], table);
}

TEST(Build, PatternsCountFromTheirAnchor) {
  for (const auto& [anchor, expected] : {std::pair<std::string, std::vector<double>>{"first", {7, 9, 7}}, {"last", {7, 9, 7}}}) {
    const std::string file = testing::TempDir() + "pattern.toml";
    std::filesystem::copy_file(kSpec + "ok_base.toml", testing::TempDir() + "ok_base.toml",
                               std::filesystem::copy_options::overwrite_existing);
    for (const int layers : {3, 4}) {
      std::ofstream(file) << "extends = \"ok_base.toml\"\n[layers.stack]\ncount = " << layers << "\npattern = { anchor = \"" << anchor
                          << "\", cap = [7.0, 9], capped = [true] }\n";
      BuildOptions wanted;
      wanted.runtime_dims = {{"T", 5}};
      const auto built = build_or_fail(load(file), wanted);
      ASSERT_TRUE(built);
      std::vector<double> caps;
      for (const NodeId node : nodes_of(built->graph, "softcap")) caps.push_back(real_attribute(built->graph, node, "cap"));
      std::vector<double> want = expected;
      if (layers == 4) want = anchor == "first" ? std::vector<double>{7, 9, 7, 9} : std::vector<double>{9, 7, 9, 7};
      EXPECT_EQ(caps, want) << anchor;
    }
  }
}

TEST(Build, ExtendingFilesOverride) {
  const std::string folder = testing::TempDir();
  std::filesystem::copy_file(kSpec + "ok_base.toml", folder + "ok_base.toml", std::filesystem::copy_options::overwrite_existing);
  std::ofstream(folder + "middle.toml") << "extends = \"ok_base.toml\"\n[dims]\nhidden = 24\nvocab = 40\n";
  std::ofstream(folder + "top.toml") << "extends = \"middle.toml\"\n[dims]\nhidden = 32\n[blocks.head]\nparams.lm_head = { init = { normal "
                                        "= 0.5 } }\n[flags]\ntied = false\n";
  BuildOptions wanted;
  wanted.runtime_dims = {{"T", 5}};
  const auto built = build_or_fail(load(folder + "top.toml"), wanted);
  ASSERT_TRUE(built);
  EXPECT_EQ(built->dims.at("hidden"), 32);
  EXPECT_EQ(built->dims.at("vocab"), 40);
  EXPECT_EQ(built->dims.at("head_dim"), 8);
  EXPECT_EQ(to_string(built->parameters.back().type), "f32[40,32]");
  EXPECT_EQ(built->parameters.back().init_value, 0.5);
}

TEST(Build, ConditionalParametersAndNamedOutputs) {
  const std::string folder = testing::TempDir();
  std::filesystem::copy_file(kSpec + "ok_base.toml", folder + "ok_base.toml", std::filesystem::copy_options::overwrite_existing);
  for (const bool biased : {false, true}) {
    std::ofstream(folder + "bias.toml")
        << "extends = \"ok_base.toml\"\n[flags]\nbiased = " << (biased ? "true" : "false")
        << "\n[blocks.head]\nparams.bias = { shape = [\"hidden\"], init = { constant = 0 }, when = \"biased\" }\n"
           "ops = [\n  { out = \"y\", op = \"linear\", in = \"x\", weight = \"mix\", bias = \"bias\" },\n"
           "  { out = [\"left\", \"right\"], op = \"split\", in = \"y\", axis = 1, size0 = \"hidden // 4\", size1 = \"hidden - hidden // "
           "4\" },\n"
           "  { out = \"logits\", op = \"concat\", in = [\"right\", \"left\"], axis = 1 },\n]\n"
           "params.mix = { shape = [\"hidden\", \"hidden\"], init = { normal = 0.02 } }\n";
    BuildOptions wanted;
    wanted.runtime_dims = {{"T", 5}};
    const auto built = build_or_fail(load(folder + "bias.toml"), wanted);
    ASSERT_TRUE(built);
    EXPECT_EQ(built->graph.find_leaf("head.bias").valid(), biased);
    EXPECT_EQ(built->graph.inputs(nodes_of(built->graph, "linear").back())[2].valid(), biased);
    const NodeId concat = nodes_of(built->graph, "concat").back();
    EXPECT_EQ(to_string(built->graph.type(built->graph.inputs(concat)[0])), "f32[5,12]");
    EXPECT_EQ(to_string(built->graph.type(built->graph.find_output("logits"))), "f32[5,16]");
  }
}

TEST(Build, OptionsAreChecked) {
  const ModelSpec spec = load(kModels + "llama_tiny.toml");
  const auto message = [&](const BuildOptions& wanted) {
    const Result<BuiltModel> built = build(spec, builtin_ops(), wanted);
    return built ? std::string("accepted") : built.error().message;
  };
  BuildOptions wanted = options();
  wanted.runtime_dims["N"] = 3;
  EXPECT_EQ(message(wanted), "the model has no runtime dimension 'N'");
  wanted = options();
  wanted.runtime_dims["T"] = -1;
  EXPECT_EQ(message(wanted), "runtime dimension 'T' must be in [0, 2147483647], not -1");
  wanted = options();
  wanted.optional_inputs = {"denominater"};
  EXPECT_EQ(message(wanted), "the model has no optional input 'denominater'; did you mean 'denominator'?");
  wanted = options();
  wanted.real = DType::kI32;
  EXPECT_EQ(message(wanted), "a model computes in f64, f32 or bf16, not in i32");
}

}  // namespace
}  // namespace glim
