// What fuzzing found, the seeds, and damaged copies of the seeds go through the fuzz targets, in every build and without libFuzzer.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/seeds.h"
#include "tests/resource_bounds.h"

// CMake lists the targets, and compiles each one's LLVMFuzzerTestOneInput under the target's own name.
#define GLIM_FUZZ_TARGET(name) extern "C" int name(const uint8_t*, size_t);
#include "fuzz_targets.inc"
#undef GLIM_FUZZ_TARGET

namespace glim {
namespace {

struct Target {
  const char* name;
  int (*run)(const uint8_t*, size_t);
};
#define GLIM_FUZZ_TARGET(name) Target{#name, name},
constexpr Target kTargets[] = {
#include "fuzz_targets.inc"
};
#undef GLIM_FUZZ_TARGET

class Fuzz : public testing::TestWithParam<Target> {
 protected:
  static void run(const std::string& input, const std::string& what) {
    SCOPED_TRACE(what);
    const std::vector<uint8_t> bytes(input.begin(), input.end());  // a block of its own, so that reading past the end is seen
    (void)bounded([&] { return GetParam().run(bytes.data(), bytes.size()); });
  }
};

TEST_P(Fuzz, FindingsAreFixed) {
  const std::filesystem::path folder = std::filesystem::path(GLIM_SOURCE_DIR "/tests/fuzz/findings") / GetParam().name;
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "nothing was found";
  std::vector<std::filesystem::path> files(std::filesystem::directory_iterator(folder), {});
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    run({std::istreambuf_iterator<char>(in), {}}, file.string());
  }
}

TEST_P(Fuzz, SeedsAndDamagedSeeds) {
  const std::vector<std::string> seeds = seeds_of(GetParam().name);
  ASSERT_FALSE(seeds.empty());
  for (size_t k = 0; k < seeds.size(); ++k) run(seeds[k], "seed " + std::to_string(k));
  std::mt19937_64 random(1);
  for (int k = 0; k < 300; ++k) {
    std::string text = seeds[random() % seeds.size()];
    for (uint64_t hits = 1 + random() % 3; hits > 0 && !text.empty(); --hits) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, 1 + random() % 8); break;
        case 2: text.insert(at, std::string(text, random() % text.size(), random() % 20)); break;
        default: text.resize(at); break;
      }
    }
    run(text, "damaged seed " + std::to_string(k));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Fuzz, testing::ValuesIn(kTargets), [](const auto& target) { return target.param.name; });

}  // namespace
}  // namespace glim
