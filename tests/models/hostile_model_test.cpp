// Model files that are good TOML and ask for too much: refused before anything grows.
#include <gtest/gtest.h>

#include <functional>

#include "models/build.h"
#include "ops/builtin_ops.h"
#include "tests/resource_bounds.h"

namespace glim {
namespace {

std::string repeated(int times, const std::function<std::string(std::string)>& text) {
  std::string out;
  for (int k = 0; k < times; ++k) out += text(std::to_string(k));
  return out;
}

// A model on one stack: `layers` layers, and text for its parameters, ops and outputs.
std::string model(const std::string& layers, const std::string& params, const std::string& ops, const std::string& outputs) {
  return "flow = [\"embed\", \"stack\"]\n[runtime_dims]\nT = \"tokens\"\n[inputs]\nx0 = { shape = [\"T\", 2], dtype = \"real\" }\n"
         "[blocks.embed]\nops = [{ out = \"x\", op = \"scale\", in = \"x0\", factor = 2 }]\n[layers.stack]\ncount = " +
         layers + "\ncarry = [\"x\"]\n" + params + "ops = [\n" + ops +
         "{ out = \"x\", op = \"scale\", in = \"x\", factor = 2 },\n]\n[outputs]\nloss = \"stack.x\"\n" + outputs;
}

std::string error_of(const std::string& text, const BuildOptions& options) {
  const Result<ModelSpec> spec = parse_spec(text, "m.toml");
  if (!spec) return spec.error().to_string();
  const Result<BuiltModel> built = build(*spec, builtin_ops(), options);
  return built ? "accepted" : built.error().to_string();
}

TEST(HostileModel, TooMuchIsRefusedAtOnce) {
  BuildOptions options;
  options.runtime_dims["T"] = 3;
  const auto op = [](const std::string& k) { return "{ out = \"y" + k + "\", op = \"scale\", in = \"x\", factor = 1 },\n"; };
  const auto param = [](const std::string& k) { return "params.p" + k + " = { shape = [1], init = { constant = 0 } }\n"; };
  const auto output = [](const std::string& k) { return "o" + k + " = { layers = \"stack\", value = \"x\" }\n"; };
  const std::pair<std::string, std::string> table[] = {
      {model("3", "", "", ""), "accepted"},
      {model("10000", "", repeated(100, op), ""), "the model has more than 1000000 ops"},
      {model("10000", repeated(101, param), "", ""), "the model has more than 1000000 parameters"},
      {model("10000", "", "", repeated(101, output)), "the model has more than 1000000 outputs"},
      {model("10001", "", "", ""), "must be at most 10000, not 10001"},
      {model("\"10000 * 10000\"", "", "", ""), "must be at most 10000, not 100000000"},
      {model("\"2 ^ 62 * 2\"", "", "", ""), "the result does not fit in 64 bits"},
      {model("\"9 ^ 9 ^ 9 ^ 9\"", "", "", ""), "the result does not fit in 64 bits"},
      {model("3", "params.p = { shape = [1], init = { constant = 0 }, hf = \"" + std::string(300, 'x') + "{i}\" }\n", "", ""),
       "a checkpoint name has at most 256 bytes"},
      {model("3", "params.p = { shape = [2147483647, 2147483647], init = { constant = 0 } }\n", "", ""),
       "more elements than any memory can hold"},
      {model("3", "", repeated(11'000, op), ""), "a model has at most 10000 ops"},
      {model("1", "",
             "{ out = \"y\", op = \"concat\", in = [" + repeated(10'000, [](const std::string&) { return "\"x\", "; }) + "], axis = 0 },\n",
             ""),
       "accepted"},
      {model("1", "",
             "{ out = \"y\", op = \"concat\", in = [" + repeated(66'000, [](const std::string&) { return "\"x\", "; }) + "], axis = 0 },\n",
             ""),
       "concat: 66000 operands are more than the 65535 that an op can have"},
  };
  for (const auto& [text, expected] : table) {
    const std::string error = bounded([&input = text, &options] { return error_of(input, options); });
    EXPECT_NE(error.find(expected), std::string::npos) << error.substr(0, 300) << "\nfor " << expected;
  }
  options.max_instances = 20;
  EXPECT_NE(error_of(model("3", "", repeated(6, op), ""), options).find("m.toml:8:9: the model has more than 20 ops"), std::string::npos);
  EXPECT_NE(error_of(model("3", repeated(7, param), "", ""), options).find("more than 20 parameters"), std::string::npos);
  EXPECT_NE(error_of(model("3", "", "", repeated(7, output)), options).find("more than 20 outputs"), std::string::npos);
}

// 4,000 names, each defined by the next: a chain that is too long, without a stack overflow; and expressions at their deepest.
TEST(HostileModel, NamesAndExpressions) {
  const auto chain = [](int length, const std::string& before, const std::string& after) {
    std::string text = "[constants]\n";
    for (int k = 0; k < length; ++k) text += "c" + std::to_string(k) + " = \"" + before + "c" + std::to_string(k + 1) + after + "\"\n";
    return text + "c" + std::to_string(length) + " = 1\n";
  };
  const std::string open(16, '('), close(16, ')');
  const std::pair<std::string, std::string> table[] = {
      {chain(30, open, close), "accepted"},
      {chain(40, open, close), "names are defined by names more than 32 deep"},
      {chain(4000, "", ""), "names are defined by names more than 32 deep"},
      {chain(30, "(" + open, close + ")"), "the expression is nested more than 16 deep"},
      {chain(30, std::string(3000, '-'), ""), "the expression is nested more than 16 deep"},
      {"[constants]\na = \"" + repeated(2000, [](const std::string&) { return "1+"; }) + "1\"\n", "accepted"},
      {"[constants]\na = \"" + repeated(1000, [](const std::string&) { return "2^"; }) + "2\"\n", "nested more than 16 deep"},
      {"[flags]\na = true\n[constants]\nb = \"a\"\n", "'a' is a flag, not a number"},
      {"[constants]\na = \"b\"\nb = \"a\"\n", "defined in terms of itself: a cycle"},
  };
  BuildOptions options;
  options.runtime_dims["T"] = 3;
  for (const auto& [text, expected] : table) {
    const std::string error = bounded([&input = text, &options] { return error_of(model("3", "", "", "") + input, options); });
    EXPECT_NE(error.find(expected), std::string::npos) << error.substr(0, 300) << "\nfor " << text.substr(0, 100);
  }
}

}  // namespace
}  // namespace glim
