// Every document of toml-test, the language's own test suite: from the Debian package golang-github-burntsushi-toml-dev, or from the folder
// GLIM_TOML_TEST, which holds valid/ and invalid/ (and maybe files-toml-1.0.0, the list of those of that version).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "models/spec.h"
#include "models/toml_file.h"
#include "tests/resource_bounds.h"

namespace glim {
namespace {

namespace fs = std::filesystem;

fs::path suite() {
  const char* folder = std::getenv("GLIM_TOML_TEST");
  return folder != nullptr ? folder : "/usr/share/gocode/src/github.com/BurntSushi/toml/internal/toml-test/tests";
}

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<fs::path> documents(const char* kind) {
  std::set<std::string> listed;
  std::ifstream list(suite() / "files-toml-1.0.0");
  for (std::string line; std::getline(list, line);) listed.insert(line);
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(suite() / kind)) {
    if (entry.path().extension() != ".toml") continue;
    if (listed.empty() || listed.contains(fs::relative(entry.path(), suite()).generic_string())) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void expect_clear(const Error& error) {
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.where.file, "m.toml");
  EXPECT_GE(error.where.line, 1);
  EXPECT_GE(error.where.column, 1);
  EXPECT_GE(error.message.size(), 10U);
  EXPECT_LT(error.message.size(), 1000U) << error.message;
}

class TomlSuite : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::is_directory(suite())) GTEST_SKIP() << "toml-test is not installed: " << suite();
  }
};

TEST_F(TomlSuite, ValidDocumentsAreAccepted) {
  size_t accepted = 0, refused = 0;
  for (const fs::path& file : documents("valid")) {
    SCOPED_TRACE(file.string());
    const std::string text = read(file), meaning = read(fs::path(file).replace_extension(".json"));
    const Result<TomlValue> tree = bounded([&] { return parse_toml(text, "m.toml"); });
    if (tree) {
      ++accepted;
      continue;
    }
    // A model file has no dates and no numbers that are not finite; everything else is refused by mistake.
    ++refused;
    expect_clear(tree.error());
    const bool has_date = meaning.find("\"date") != std::string::npos || meaning.find("\"time") != std::string::npos;
    const bool has_infinite = meaning.find("inf\"") != std::string::npos || meaning.find("nan\"") != std::string::npos;
    EXPECT_TRUE((tree.error().message == "dates and times have no meaning in a model file" && has_date) ||
                (tree.error().message == "a number must be finite" && has_infinite) ||
                tree.error().message.find("is not supported in TOML 1.0.0 and earlier") != std::string::npos)
        << tree.error().to_string();
  }
  EXPECT_GE(accepted, 75U);
  EXPECT_LT(refused, accepted / 3);
  RecordProperty("accepted", static_cast<int>(accepted));
}

TEST_F(TomlSuite, InvalidDocumentsAreRefusedAtTheirPlace) {
  const std::vector<fs::path> files = documents("invalid");
  EXPECT_GE(files.size(), 200U);
  for (const fs::path& file : files) {
    SCOPED_TRACE(file.string());
    const std::string text = read(file);
    const Result<TomlValue> tree = bounded([&] { return parse_toml(text, "m.toml"); });
    EXPECT_FALSE(tree);
    if (!tree) expect_clear(tree.error());
  }
}

TEST_F(TomlSuite, NoDocumentIsAModel) {
  for (const char* kind : {"valid", "invalid"}) {
    for (const fs::path& file : documents(kind)) {
      SCOPED_TRACE(file.string());
      const std::string text = read(file);
      const Result<ModelSpec> spec = bounded([&] { return parse_spec(text, "m.toml"); });
      ASSERT_FALSE(spec);
      expect_clear(spec.error());
    }
  }
}

}  // namespace
}  // namespace glim
