// What a user meets: help, messages and exit codes, graphs, checks, plans.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/parse.h"
#include "engine/print.h"
#include "ops/builtin_ops.h"
#include "runtime/device.h"
#include "runtime/safetensors.h"
#include "tests/cli/program.h"
#include "tests/runtime/scratch_folder.h"

namespace glim {
namespace {

const std::vector<std::string> kSmall{"--set",        "vocab=31",    "hidden=16",      "feed_forward=24",
                                      "num_layers=2", "num_heads=2", "num_kv_heads=1", "head_dim=8"};

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
// The program ends with this code, prints nothing to stdout, and one message that has all of `parts`.
void expect_error(const std::vector<std::string>& arguments, int exit_code, const std::vector<std::string>& parts) {
  const ProgramResult result = run_glim(arguments);
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(result.err.starts_with("glim: ")) << result.err;
  for (const std::string& part : parts) EXPECT_NE(result.err.find(part), std::string::npos) << part << " is not in: " << result.err;
}
// A file of i64 tensors [1, n].
void write_inputs(const std::string& path, const std::map<std::string, std::vector<int64_t>>& tensors) {
  std::vector<FileTensor> file;
  for (const auto& [name, values] : tensors)
    file.push_back({{name, FileDType::kI64, {1, static_cast<int64_t>(values.size())}}, std::as_bytes(std::span(values))});
  ASSERT_TRUE(write_safetensors(path, file, std::nullopt));
}

TEST(Help, EveryCommandHasAnExample) {
  const ProgramResult help = run_glim({"--help"});
  ASSERT_EQ(help.exit_code, 0);
  std::istringstream lines(help.out.substr(help.out.find("Subcommands:")));
  std::vector<std::string> commands;
  std::string line, word;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    if (std::istringstream(line) >> word) commands.push_back(word);
    word.clear();
  }
  EXPECT_GE(commands.size(), 11U);
  for (const char* command : {"run", "train", "eval", "generate", "check", "plan", "graph", "ops", "bench", "import", "export"}) {
    EXPECT_NE(std::find(commands.begin(), commands.end(), command), commands.end()) << command;
  }
  for (const std::string& command : commands) {
    const ProgramResult one = run_glim({command, "--help"});
    EXPECT_EQ(one.exit_code, 0) << command;
    EXPECT_NE(one.out.find("Example: glim " + command), std::string::npos) << command << ": " << one.out;
  }
  EXPECT_EQ(run_glim({"--version"}).exit_code, 0);
}

TEST(Arguments, MistakesNameTheClosestChoice) {
  expect_error({"plan", "muse_glimmer_tiny", "--tokenz", "5"}, 2, {"--tokenz", "did you mean '--tokens'", "--help"});
  expect_error({"plam"}, 2, {"did you mean 'plan'", "--help"});
  expect_error({}, 2, {"--help"});
  expect_error({"plan", "muse_glimer_tiny"}, 2, {"'muse_glimer_tiny'", "did you mean 'muse_glimmer_tiny'"});
  expect_error({"plan", "muse_glimmer_tiny", "--set", "num_layer=2"}, 2, {"'num_layer'", "did you mean 'num_layers'"});
  expect_error({"plan", "muse_glimmer_tiny", "--set", "num_layers"}, 2, {"'num_layers'", "name=value"});
  expect_error({"plan", "muse_glimmer_tiny", "--set", "num_layers=0"}, 2, {"num_layers"});
  expect_error({"plan", "muse_glimmer_tiny", "--dtype", "f31"}, 2, {"f32, f64 or bf16", "'f31'"});
  expect_error({"plan", "muse_glimmer_tiny", "--tokens", "0"}, 2, {"--tokens"});
  expect_error({"graph", "muse_glimmer_tiny", "--format", "txt"}, 2, {"'txt'", "text, dot or svg"});
  expect_error({"graph", "muse_glimmer_tiny", "--program", "fist"}, 2, {"'fist'", "did you mean 'first'"});
  expect_error({"graph", "muse_glimmer_tiny", "--stop-after", "fuse_foward"}, 2, {"'fuse_foward'", "did you mean 'fuse_forward'"});
  expect_error({"graph", "muse_glimmer_tiny", "--outputs", "hiden.1"}, 2, {"'hiden.1'"});
  expect_error({"check", "muse_glimmer_tiny", "--backend", "cudo"}, 2, {"'cudo'", "did you mean 'cuda'"});
  expect_error({"run", "muse_glimmer_tiny", "--inputs", "none", "--outputs", "out"}, 2, {"no weights"});
  expect_error({"generate", golden_folder("text_tiny"), "--prompt", "words"}, 2, {"--ids"});
  expect_error({"generate", golden_folder("text_tiny")}, 2, {"--prompt", "--ids", "--inputs"});
}

TEST(Arguments, WithoutAGpuTheCudaBackendSaysWhatIsMissing) {
  std::string why_not;
  if (cuda_available(why_not)) GTEST_SKIP() << "there is a GPU";
  expect_error({"check", "muse_glimmer_tiny", "--backend", "cuda"}, 2, {why_not});
  expect_error({"bench", "step", "muse_glimmer_tiny", "--backend", "cuda"}, 2, {why_not});
  expect_error({"bench", "--backend", "cuda"}, 2, {why_not});
  const ScratchFolder scratch;
  write_file(scratch / "train.toml", "model = \"muse_glimmer_tiny\"\n[data]\ntext = [\"a.txt\"]\n[train]\nsteps = 5\nbackend = \"cuda\"\n");
  expect_error({"train", scratch / "train.toml"}, 2, {why_not});
  expect_error({"train", scratch / "train.toml", "--backend", "cudo"}, 2, {"'cudo'", "did you mean 'cuda'"});
  expect_error({"train", scratch / "train.toml", "--backend", "cpu"}, 5, {"a.txt"});  // what the command line says comes first
}

TEST(Bench, TimesTheCasesOfAnOp) {
  const ProgramResult json = run_glim({"bench", "--op", "swiglu", "--dtype", "f64", "--extent", "32", "--seconds", "0", "--json"});
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const nlohmann::json report = nlohmann::json::parse(json.out);
  EXPECT_EQ(report["dtype"], "f64");
  EXPECT_GT(report["copy_bytes_per_second"].get<double>(), 1e8);
  EXPECT_GT(report["product_flops_per_second"].get<double>(), 1e7);
  ASSERT_FALSE(report["cases"].empty());
  for (const nlohmann::json& each : report["cases"]) {
    EXPECT_EQ(each["op"], "swiglu");
    const double bound = each["bytes"].get<double>() / report["copy_bytes_per_second"].get<double>();
    const double flops = each["flops"].get<double>() / report["product_flops_per_second"].get<double>();
    EXPECT_NEAR(each["percent_of_roofline"].get<double>(), 100 * std::max(bound, flops) / each["seconds"].get<double>(), 1e-6);
  }
  const ProgramResult text = run_glim({"bench", "--op", "split", "--extent", "8", "--seconds", "0"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("a large copy moves"), std::string::npos) << text.out;
  EXPECT_EQ(text.out.find("\nsplit "), std::string::npos) << "a view takes no time: " << text.out;
  expect_error({"bench", "--op", "swigl"}, 2, {"there is no op 'swigl'", "did you mean 'swiglu'"});
  expect_error({"bench", "--extent", "0"}, 2, {"--extent"});
  expect_error({"bench", "--dtype", "i32"}, 2, {"'i32'"});
}

TEST(Arguments, AModelFileHasItsLineAndColumn) {
  const ScratchFolder scratch;
  write_file(scratch / "bad.toml",
             "flow = [\"a\"]\n[runtime_dims]\nT = \"tokens\"\nG = \"segments\"\nR = \"rows\"\n[blocks.a]\nops = [{ out = \"x\", op = "
             "\"lineer\" }]\n[outputs]\nloss = \"a.x\"\n");
  expect_error({"graph", scratch / "bad.toml", "--program", "forward", "--outputs", "loss"}, 2,
               {"bad.toml:7:", "'lineer'", "did you mean 'linear'"});
  write_file(scratch / "train.toml", "model = \"muse_glimmer_tiny\"\n[data]\ntext = [\"a.txt\"]\n[train]\nstep = 5\n");
  expect_error({"train", scratch / "train.toml"}, 2, {"train.toml:5:1", "'step'", "did you mean 'steps'"});
}

TEST(Files, WhatIsNoSafetensorsFileIsNamed) {
  const ScratchFolder scratch;
  const std::string model = golden_folder("text_tiny"), inputs = model + "/case.safetensors", bad = scratch / "bad.safetensors";
  for (const std::string& content : {std::string(), std::string("short"), std::string(200, 'x'), safetensors_text("{\"a\":", "")}) {
    write_file(bad, content);
    expect_error({"run", model, "--inputs", bad, "--outputs", scratch / "out"}, 3, {bad});
    expect_error({"run", model, "--weights", bad, "--inputs", inputs, "--outputs", scratch / "out"}, 3, {bad});
    expect_error({"import", model, "--weights", bad, "--output", scratch / "copy"}, 3, {bad});
  }
  expect_error({"run", model, "--inputs", scratch / "nothing.safetensors", "--outputs", scratch / "out"}, 5, {"nothing.safetensors"});
  EXPECT_FALSE(std::filesystem::exists(scratch / "out"));
}

TEST(Files, MissingAndUnknownWeightsAreNamed) {
  const ScratchFolder scratch;
  const std::string model = golden_folder("text_tiny"), inputs = model + "/case.safetensors",
                    lost = "model.language_model.layers.2.self_attn.k_proj.weight";
  const Result<SafetensorsFile> file = SafetensorsFile::open(model + "/model.safetensors");
  ASSERT_TRUE(file);
  std::vector<FileTensor> tensors;
  for (FileTensor tensor : file->tensors()) {
    if (tensor.spec.name != lost) tensors.push_back(tensor);
  }
  ASSERT_EQ(tensors.size() + 1, file->tensors().size());
  ASSERT_TRUE(write_safetensors(scratch / "lost.safetensors", tensors, std::nullopt));
  expect_error({"run", model, "--weights", scratch / "lost.safetensors", "--inputs", inputs, "--outputs", scratch / "out"}, 3,
               {lost, "lost.safetensors"});
  expect_error({"import", model, "--weights", scratch / "lost.safetensors", "--output", scratch / "copy"}, 3, {lost});

  FileTensor renamed = *file->find(lost);
  renamed.spec.name = "model.language_model.layers.2.self_attn.key_proj.weight";
  tensors.push_back(renamed);
  ASSERT_TRUE(write_safetensors(scratch / "renamed.safetensors", tensors, std::nullopt));
  expect_error({"run", model, "--weights", scratch / "renamed.safetensors", "--inputs", inputs, "--outputs", scratch / "out"}, 3,
               {lost, renamed.spec.name});

  tensors.back() = *file->find(lost);
  tensors.back().spec.shape = {tensors.back().spec.shape[1], tensors.back().spec.shape[0]};
  ASSERT_TRUE(write_safetensors(scratch / "turned.safetensors", tensors, std::nullopt));
  expect_error({"run", model, "--weights", scratch / "turned.safetensors", "--inputs", inputs, "--outputs", scratch / "out"}, 3, {lost});
}

TEST(Files, DataOutsideItsRangeHasItsPosition) {
  const ScratchFolder scratch;
  const std::string model = golden_folder("text_tiny"), inputs = scratch / "in.safetensors";
  const auto expect = [&](const std::map<std::string, std::vector<int64_t>>& tensors, const std::vector<std::string>& parts) {
    write_inputs(inputs, tensors);
    const ProgramResult result = run_glim({"run", model, "--inputs", inputs, "--outputs", scratch / "out"});
    EXPECT_TRUE(result.exit_code == 2 || result.exit_code == 3) << result.exit_code << result.err;
    for (const std::string& part : parts) EXPECT_NE(result.err.find(part), std::string::npos) << part << " is not in: " << result.err;
  };
  expect({{"input_ids", {1, 2, 3, 4}}, {"labels", {-100, 5, 320, 7}}},
         {"320", "position 1", "[0, 319]"});  // label 2 is the target of token 1
  expect({{"input_ids", {1, 2, 3, 4}}, {"labels", {-100, 5, 6, -99}}}, {"-99", "position 2"});
  expect({{"input_ids", {1, 2, 320, 4}}}, {"320", "position 2"});
  expect({{"input_ids", {1, 2, -1, 4}}}, {"-1", "position 2"});
  expect({{"input_ids", {1, 2, int64_t{1} << 40, 4}}}, {"input_ids"});
  expect({{"input_ids", {1, 2, 3, 4}}, {"labels", {1, 2, 3}}}, {"labels"});
  expect({{"input_ids", {1, 2, 3, 4}}, {"lables", {1, 2, 3, 4}}}, {"'lables'", "did you mean 'labels'"});
  expect({{"labels", {1, 2, 3, 4}}}, {"input_ids"});
  EXPECT_FALSE(std::filesystem::exists(scratch / "out"));
  expect_error({"run", model, "--inputs", inputs, "--outputs", scratch / "out", "--grad"}, 3, {"input_ids"});
}

TEST(Graph, TextParsesBackToTheSame) {
  for (const char* program : {"forward", "first", "next", "update"}) {
    for (const char* stop : {"", "build", "autodiff", "fuse_forward"}) {
      std::vector<std::string> arguments = joined({"graph", "muse_glimmer_tiny"}, kSmall);
      arguments.insert(arguments.end(), {"--program", program, "--tokens", "12"});
      if (*stop != 0) arguments.insert(arguments.end(), {"--stop-after", stop});
      const ProgramResult result = run_glim(arguments);
      ASSERT_EQ(result.exit_code, 0) << result.err;
      const Result<Graph> graph = parse(result.out, builtin_ops(), "stdout");
      ASSERT_TRUE(graph) << graph.error().to_string();
      EXPECT_GT(graph->num_nodes(), 0U);
      EXPECT_EQ(print(*graph), result.out) << program << " " << stop;
    }
  }
}

// The lowered training graph never holds logits: the head is one node.
TEST(Graph, TheHeadIsOneNode) {
  const std::vector<std::string> base = joined(joined({"graph", "muse_glimmer_tiny"}, kSmall), {"--tokens", "12"});
  const std::string lowered = run_glim(base).out,
                    plain = run_glim(joined(base, {"--stop-after", "autodiff", "--disable", "fuse_forward"})).out;
  EXPECT_NE(lowered.find("linear_cross_entropy_grad("), std::string::npos);
  EXPECT_EQ(lowered.find("[12,31]"), std::string::npos);
  EXPECT_NE(plain.find("[12,31]"), std::string::npos);
}

TEST(Graph, DrawsThroughGraphviz) {
  const std::vector<std::string> base = joined({"graph", "muse_glimmer_tiny"}, kSmall);
  const ProgramResult dot = run_glim(joined(base, {"--format", "dot"}));
  ASSERT_EQ(dot.exit_code, 0) << dot.err;
  EXPECT_TRUE(dot.out.starts_with("digraph"));
  const ProgramResult without = run_glim(joined(base, {"--format", "svg"}), {{"PATH", "/nowhere"}});
  EXPECT_EQ(without.exit_code, 2);
  EXPECT_NE(without.err.find("apt-get install graphviz"), std::string::npos) << without.err;
  if (std::system("dot -V >/dev/null 2>&1") != 0) GTEST_SKIP() << "Graphviz is not installed: the drawing itself was not tried";
  const ScratchFolder scratch;
  const ProgramResult svg = run_glim(joined(base, {"--format", "svg", "-o", scratch / "graph.svg"}));
  ASSERT_EQ(svg.exit_code, 0) << svg.err;
  const std::string drawing = read_file(scratch / "graph.svg");
  EXPECT_TRUE(drawing.starts_with("<?xml")) << drawing.substr(0, 80);
  EXPECT_NE(drawing.find("</svg>"), std::string::npos);
}

TEST(Ops, ListsTheTable) {
  const ProgramResult result = run_glim({"ops", "--json"});
  ASSERT_EQ(result.exit_code, 0);
  std::istringstream lines(result.out);
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);) names.push_back(nlohmann::json::parse(line)["name"]);
  ASSERT_EQ(names.size() + 1, builtin_ops().size());  // row 0 is the leaf
  for (uint16_t row = 1; row < builtin_ops().size(); ++row) EXPECT_EQ(names[row - 1U], builtin_ops()[OpId{row}].name);
}

TEST(Check, PassesOnBothFamilies) {
  for (const char* model : {"muse_glimmer_tiny", "llama_tiny"}) {
    for (const std::vector<std::string>& extra : {std::vector<std::string>{}, {"--set", "tie_word_embeddings=true"}}) {
      const ProgramResult result = run_glim(joined(joined(joined({"check", model}, kSmall), extra), {"--tokens", "12", "--json"}));
      EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
      std::istringstream lines(result.out);
      size_t gradients = 0, passes = 0;
      for (std::string line; std::getline(lines, line);) {
        const nlohmann::json check = nlohmann::json::parse(line);
        EXPECT_TRUE(check["passed"].get<bool>()) << line;
        gradients += check["check"].get<std::string>().starts_with("gradient of ") ? 1 : 0;
        passes += check["check"].get<std::string>().starts_with("without ") ? 1 : 0;
      }
      EXPECT_GE(gradients, 20U);
      EXPECT_GE(passes, 5U);
    }
  }
  // Rounding alone is above a bound of zero, so the program can fail, too.
  const ProgramResult strict = run_glim(joined(joined({"check", "llama_tiny"}, kSmall), {"--tokens", "12", "--tolerance", "0"}));
  EXPECT_EQ(strict.exit_code, 6);
  EXPECT_NE(strict.out.find("FAIL gradient of"), std::string::npos);
}

TEST(Plan, ReleasedModelNeedsNoGpuAndLittleTime) {
  const ProgramResult result = run_glim({"plan", "muse_glimmer_30b", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json plan = nlohmann::json::parse(result.out);
  EXPECT_EQ(plan["num_parameters"], 27'854'780'928);
  EXPECT_EQ(plan["num_trained"], 27'854'780'928);
  const double seconds = plan["compile_seconds"].get<double>();
  EXPECT_TRUE(std::isfinite(seconds) && seconds > 0);
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(seconds, 1);
#endif
  EXPECT_LT(plan["graph_bytes"].get<double>(), 300e6);
  // bf16 parameters; f32 gradients; f32 master weights and two moments.
  const nlohmann::json& arenas = plan["policies"]["none"]["arenas"];
  const double parameters = 27'854'780'928;
  double state = 0;
  for (const auto& [name, bytes] : arenas.items()) {
    if (name == "parameters" || name == "gradients" || name == "optimizer") state += bytes.get<double>();
  }
  EXPECT_NEAR(state / parameters, 2 + 4 + 12, 0.01);
  EXPECT_LT(plan["policies"]["full"]["saved_bytes"].get<double>(), 0.2 * plan["policies"]["none"]["saved_bytes"].get<double>());
  EXPECT_EQ(plan["policies"]["none"]["recompute_flops"], 0);
  EXPECT_GT(plan["policies"]["full"]["recompute_flops"].get<double>(), plan["policies"]["auto"]["recompute_flops"].get<double>());
}

}  // namespace
}  // namespace glim
