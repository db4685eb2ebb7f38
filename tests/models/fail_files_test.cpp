// Every tests/spec/fail_*.toml is wrong in one way; its first line says which error, where: "# expect: LINE:COLUMN: message", or
// "# expect: FILE:LINE:COLUMN: message" when the error stands in a file that it extends. GLIM_WRITE_EXPECTATIONS=1 writes the lines anew.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "models/build.h"
#include "ops/builtin_ops.h"

namespace glim {
namespace {

const std::string kFolder = std::string(GLIM_SOURCE_DIR) + "/tests/spec/";
constexpr std::string_view kPrefix = "# expect: ";

std::string read(const std::string& path) {
  std::ifstream stream(path);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::vector<std::string> fail_files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("fail_", 0) == 0) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Loads and builds everything in the file.
std::string error_of(const std::string& name) {
  Result<ModelSpec> spec = load_spec(kFolder + name);
  Error error;
  if (!spec) {
    error = spec.error();
  } else {
    BuildOptions options;
    options.runtime_dims = {{"T", 8}};
    Result<BuiltModel> built = build(*spec, builtin_ops(), options);
    if (!built) {
      error = built.error();
    } else {
      return "it was accepted";
    }
  }
  const std::string file = std::filesystem::path(error.where.file).filename().string();
  std::string text = file == name ? "" : file + ":";
  if (error.where.line > 0) text += std::to_string(error.where.line) + ":" + std::to_string(error.where.column) + ": ";
  return text + error.message;
}

class FailFile : public testing::TestWithParam<std::string> {};

TEST_P(FailFile, HasItsMessageAtItsPlace) {
  const std::string text = read(kFolder + GetParam());
  const std::string first = text.substr(0, text.find('\n'));
  const std::string error = error_of(GetParam());
  if (std::getenv("GLIM_WRITE_EXPECTATIONS") != nullptr) {
    std::ofstream(kFolder + GetParam()) << kPrefix << error << text.substr(text.find('\n'));
    GTEST_SKIP() << "written: " << error;
  }
  ASSERT_EQ(first.substr(0, kPrefix.size()), kPrefix);
  EXPECT_EQ(error, first.substr(kPrefix.size()));
}

INSTANTIATE_TEST_SUITE_P(Spec, FailFile, testing::ValuesIn(fail_files()), [](const auto& fail_file) {
  std::string name = fail_file.param.substr(5);
  return name.substr(0, name.find('.'));
});

TEST(FailFiles, AreManyAndTheirBaseIsGood) {
  EXPECT_GE(fail_files().size(), 90U);
  Result<ModelSpec> spec = load_spec(kFolder + "ok_base.toml");
  ASSERT_TRUE(spec) << spec.error().to_string();
  BuildOptions options;
  options.runtime_dims = {{"T", 8}};
  Result<BuiltModel> built = build(*spec, builtin_ops(), options);
  ASSERT_TRUE(built) << built.error().to_string();
  options.outputs = {"logit"};
  built = build(*spec, builtin_ops(), options);
  ASSERT_FALSE(built);
  EXPECT_EQ(built.error().message, "the model has no output 'logit'; did you mean 'logits'?");
}

}  // namespace
}  // namespace glim
