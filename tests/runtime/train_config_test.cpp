// The keys that cli/README.md lists are known, and their defaults are the program's.
#include "runtime/train_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/runtime/scratch_folder.h"

namespace glim {
namespace {

// Every number, flag and text that the table gives a default for.
std::string values_of(const TrainConfig& c) {
  return fmt::format("{} {} {} {} {} {} {} {} | {} {} {} {} {} {} | {} {} {} {} {} {} {} {} {} {} {}", c.tokens, c.micro_steps, c.steps,
                     c.max_seconds, c.learning_rate, c.final_learning_rate, c.warmup_steps, c.seed, c.adamw.beta1, c.adamw.beta2,
                     c.adamw.eps, c.adamw.weight_decay, c.adamw.max_norm, c.adamw.master_weights, to_string(c.dtype), to_string(c.backend),
                     to_string(c.rematerialise), c.log_every, c.validate_every, c.peak_tflops, c.data.validation_fraction,
                     c.data.overlong == Overlong::kDrop, c.checkpoint.every, c.checkpoint.keep_last, c.checkpoint.keep_every);
}

std::vector<std::string> quoted_words(const std::string& cell) {
  std::vector<std::string> words;
  for (size_t at = cell.find('`'); at != std::string::npos; at = cell.find('`', at + 1)) {
    const size_t end = cell.find('`', at + 1);
    words.push_back(cell.substr(at + 1, end - at - 1));
    at = end;
  }
  return words;
}

TEST(TrainConfig, DocumentedKeysAndDefaultsAreTrue) {
  std::istringstream page(read_file(GLIM_SOURCE_DIR "/cli/README.md"));
  std::string line;
  while (line != "| key | default | what it says |" && std::getline(page, line)) {
  }
  std::getline(page, line);
  std::vector<std::pair<std::string, std::string>> defaults;
  while (std::getline(page, line) && line.starts_with('|')) {
    const size_t second = line.find('|', 1), third = line.find('|', second + 1);
    const std::vector<std::string> keys = quoted_words(line.substr(0, second)), values = quoted_words(line.substr(second, third - second));
    ASSERT_FALSE(keys.empty()) << line;
    for (size_t k = 0; k < keys.size(); ++k) defaults.emplace_back(keys[k], values.empty() ? "" : values.at(k));
  }
  ASSERT_GE(defaults.size(), 30U);

  const ScratchFolder folder;
  write_file(folder / "run.toml", "model = \"muse_glimmer_tiny\"\n[data]\nfiles = [\"a.txt\"]\n[train]\nsteps = 7\n");
  const Result<TrainConfig> plain = load_train_config(folder / "run.toml");
  ASSERT_TRUE(plain) << plain.error().to_string();
  for (const auto& [key, value] : defaults) {
    const std::string given = !value.empty() ? value : key == "train.steps" ? "7" : "'other'";
    const std::string setting = key + "=" + given;
    const Result<TrainConfig> config = load_train_config(folder / "run.toml", {{setting}});
    ASSERT_TRUE(config) << setting << ": " << config.error().to_string();
    EXPECT_EQ(values_of(*config), values_of(*plain)) << setting;
  }
}

}  // namespace
}  // namespace glim
