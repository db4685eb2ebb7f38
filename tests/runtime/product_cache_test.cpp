// The file that remembers which algorithms multiply fastest: what it keeps, and that nothing in it or around it can do harm.
#include "runtime/product_cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <optional>

#include "tests/runtime/scratch_folder.h"

namespace glim {
namespace {

const AlgorithmChoices kChoices{{"bf16 8x8x8", "42"}, {"f32 8x8x8", "00ff"}};

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST(ProductCache, LiesInTheUsersCacheFolder) {
  const auto path = [](const char* cache, const char* home) {
    const Variable first("XDG_CACHE_HOME", cache), second("HOME", home);
    return product_cache_path();
  };
  EXPECT_EQ(path("/cache", "/home/a"), "/cache/glim/products.json");
  EXPECT_EQ(path(nullptr, "/home/a"), "/home/a/.cache/glim/products.json");
  EXPECT_EQ(path("", "/home/a"), "/home/a/.cache/glim/products.json");
  EXPECT_EQ(path("relative", "/home/a"), "/home/a/.cache/glim/products.json");  // as the XDG specification says
  EXPECT_EQ(path(nullptr, nullptr), "");
  EXPECT_EQ(path(nullptr, "relative"), "");
  EXPECT_TRUE(read_product_cache("", "a").empty());
}

TEST(ProductCache, KeepsWhatEachMachineChose) {
  const ScratchFolder scratch;
  const std::string path = scratch / "new/glim/products.json";
  EXPECT_TRUE(read_product_cache(path, "a").empty());
  ASSERT_TRUE(write_product_cache(path, "a", kChoices));
  ASSERT_TRUE(write_product_cache(path, "b \xff", {{"x", "1"}}));
  ASSERT_TRUE(write_product_cache(path, "a", {{"f32 8x8x8", "7"}, {"more", "8"}}));
  EXPECT_EQ(read_product_cache(path, "a"), (AlgorithmChoices{{"bf16 8x8x8", "42"}, {"f32 8x8x8", "7"}, {"more", "8"}}));
  EXPECT_EQ(read_product_cache(path, "b \xef\xbf\xbd"), (AlgorithmChoices{{"x", "1"}}));
  EXPECT_TRUE(read_product_cache(path, "c").empty());
  EXPECT_EQ(read_folder(scratch / "new/glim").size(), 1U) << "something temporary was left";
}

TEST(ProductCache, AStrangeFileHoldsNothingAndIsReplaced) {
  const ScratchFolder scratch;
  const std::string path = scratch / "products.json";
  ASSERT_TRUE(write_product_cache(path, "a", kChoices));
  const std::string good = read_file(path);
  const auto with = [&good](std::string_view from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::vector<std::string> strange{"",
                                         "[]",
                                         "null",
                                         "{}",
                                         good.substr(0, good.size() / 2),
                                         good + "x",
                                         std::string(100'000, '['),
                                         with("\"format\": 1", "\"format\": 2"),
                                         with("\"format\": 1", "\"format\": [1]"),
                                         with("\"machines\"", "\"machine\""),
                                         with("\"42\"", "42"),
                                         with("\"42\"", "null"),
                                         with("\"42\"", "{}"),
                                         with("\"42\"", "\"" + std::string(600, '4') + "\""),
                                         with("bf16 8x8x8", std::string(600, 'b')),
                                         with("\"42\"", "\"42\", \"bf16 8x8x8\": \"43\""),
                                         R"({"format": 1, "machines": []})",
                                         R"({"format": 1, "machines": {"a": []}})",
                                         R"({"format": 1, "machines": {"a": "42"}})",
                                         "{\"format\": 1, \"machines\": {\"a\": {\"\xff\": \"42\"}}}",
                                         good + std::string(size_t{5} << 20, ' ')};
  for (const std::string& text : strange) {
    write_file(path, text);
    EXPECT_TRUE(read_product_cache(path, "a").empty()) << text.substr(0, 200);
  }
  write_file(path, good);
  EXPECT_EQ(read_product_cache(path, "a"), kChoices);
  write_file(path, strange.front());
  ASSERT_TRUE(write_product_cache(path, "a", kChoices));
  EXPECT_EQ(read_product_cache(path, "a"), kChoices);
}

TEST(ProductCache, NothingThatIsNoFileIsReadOrWritten) {
  const ScratchFolder scratch;
  ASSERT_EQ(::mkfifo((scratch / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(read_product_cache(scratch / "pipe", "a").empty());  // and does not wait for a writer
  EXPECT_TRUE(read_product_cache(scratch.path(), "a").empty());
  write_file(scratch / "file", "");
  const Status status = write_product_cache(scratch / "file/glim/products.json", "a", kChoices);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_FALSE(write_product_cache("/proc/glim/products.json", "a", kChoices));
  EXPECT_FALSE(write_product_cache("", "a", kChoices));
}

// Years of other shapes and drivers do not grow it for ever.
TEST(ProductCache, StaysSmall) {
  const ScratchFolder scratch;
  const std::string path = scratch / "products.json";
  AlgorithmChoices many;
  for (int k = 0; k < 12'000; ++k) many[std::string(300, 'p') + std::to_string(k)] = "1";
  ASSERT_TRUE(write_product_cache(path, "old", many));
  ASSERT_EQ(read_product_cache(path, "old").size(), many.size());
  ASSERT_TRUE(write_product_cache(path, "new", AlgorithmChoices(many.begin(), std::next(many.begin(), 3000))));
  EXPECT_EQ(read_product_cache(path, "new").size(), 3000U);
  EXPECT_TRUE(read_product_cache(path, "old").empty());
}

}  // namespace
}  // namespace glim
