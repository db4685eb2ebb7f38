// What `glim train` shows of its steps: on a terminal one line that is rewritten until the next one is due, in a pipe plain lines.
#include <gtest/gtest.h>

#include <regex>
#include <sstream>

#include "tests/cli/program.h"
#include "tests/runtime/scratch_folder.h"

namespace glim {
namespace {

class ProgressLine : public testing::Test {
 protected:
  ProgressLine() {
    std::string text;
    for (int k = 0; k < 60; ++k) text += "The more I learn, the more I see how little I know. " + std::to_string(k) + "\n";
    write_file(folder_ / "text.txt", text);
    write_file(folder_ / "train.toml",
               "model = \"muse_glimmer_tiny\"\n"
               "set = [\"hidden=32\", \"feed_forward=48\", \"num_heads=4\", \"num_kv_heads=2\", \"head_dim=8\", \"num_layers=1\"]\n"
               "[data]\ntext = [\"text.txt\"]\n[train]\ntokens = 64\nsteps = 7\nlog_every = 3\nwarmup_steps = 2\n");
  }
  [[nodiscard]] std::vector<std::string> train(const std::vector<std::string>& settings = {}) const {
    std::vector<std::string> words{"train", folder_ / "train.toml"};
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    return words;
  }
  ScratchFolder folder_;
};

const char* const kStep =
    "step +[0-9]+/7  loss +[0-9.]+  token accuracy +[0-9.]+ %  lr [0-9.e+-]+  grad norm +[0-9.]+  +[0-9]+ tokens/s  "
    " *[0-9.]+ [GT]FLOP/s(  MFU [0-9.]+ %)?  [0-9.]+ [KMG]iB  ETA [0-9:]+( s)?";

// What a terminal shows after carriage returns, line feeds and "erase to the end of the line": the only ones that may come.
std::vector<std::string> screen(const std::string& output) {
  std::vector<std::string> lines(1);
  size_t column = 0;
  for (size_t at = 0; at < output.size(); ++at) {
    std::string& line = lines.back();
    if (output[at] == '\r') {
      column = 0;
    } else if (output[at] == '\n') {
      lines.emplace_back();
    } else if (output.compare(at, 3, "\033[K") == 0) {
      line.resize(std::min(line.size(), column));
      at += 2;
    } else {
      EXPECT_GE(output[at], ' ') << "another control character";
      line.resize(std::max(line.size(), column + 1), ' ');
      line[column++] = output[at];
    }
  }
  return lines;
}

std::vector<int> steps_of(const std::vector<std::string>& lines) {
  std::vector<int> steps;
  for (const std::string& line : lines) {
    if (!line.starts_with("step ")) continue;
    EXPECT_TRUE(std::regex_match(line, std::regex(kStep))) << line;
    steps.push_back(std::stoi(line.substr(5)));
  }
  return steps;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST_F(ProgressLine, OfATerminalIsRewritten) {
  const ProgramResult result = run_glim_on_terminal(train(), 200);
  ASSERT_EQ(result.exit_code, 0) << result.out;
  // Every step is shown; of those that are not due, nothing stays.
  const std::regex rewritten("\r\033\\[K(step [^\r\n\033]*)");
  std::vector<std::string> shown;
  for (std::sregex_iterator at(result.out.begin(), result.out.end(), rewritten), end; at != end; ++at) shown.push_back((*at)[1]);
  EXPECT_EQ(steps_of(shown), (std::vector<int>{2, 3, 4, 5, 6})) << result.out;  // 1 and 7 have no line to take back
  EXPECT_EQ(steps_of(screen(result.out)), (std::vector<int>{1, 3, 6, 7})) << result.out;
  EXPECT_EQ(screen(result.out).back(), "");
  EXPECT_EQ(result.out.find("MFU"), std::string::npos) << "no peak is known";
}

TEST_F(ProgressLine, KnowsTheShareOfAPeak) {
  const ProgramResult result = run_glim_on_terminal(train({"train.peak_tflops=0.001"}), 200);
  ASSERT_EQ(result.exit_code, 0) << result.out;
  int num_steps = 0;
  for (const std::string& line : screen(result.out)) {
    std::smatch found;
    if (!std::regex_search(line, found, std::regex(" ([0-9.]+) GFLOP/s  MFU ([0-9.]+) %"))) continue;
    ++num_steps;
    EXPECT_NEAR(std::stod(found[2]), 100 * std::stod(found[1]), 5.1) << line;  // of 1 GFLOP/s; both are rounded to a tenth
  }
  EXPECT_EQ(num_steps, 4) << result.out;
}

TEST_F(ProgressLine, NeverWraps) {
  const ProgramResult result = run_glim_on_terminal(train(), 50);
  ASSERT_EQ(result.exit_code, 0) << result.out;
  const std::regex open_line("\r\033\\[K(step [^\r\n\033]*)(?=\r\033)");
  int num_open = 0;
  for (std::sregex_iterator at(result.out.begin(), result.out.end(), open_line), end; at != end; ++at, ++num_open)
    EXPECT_EQ((*at)[1].length(), 49) << (*at)[1];
  EXPECT_EQ(num_open, 3) << result.out;  // steps 2, 4 and 5
}

TEST_F(ProgressLine, OfAPipeIsPlain) {
  const ProgramResult result = run_script("$GLIM train " + folder_.path() + "/train.toml | cat");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char control : {'\r', '\033'}) EXPECT_EQ(result.out.find(control), std::string::npos) << result.out;
  EXPECT_EQ(steps_of(lines_of(result.out)), (std::vector<int>{1, 3, 6, 7})) << result.out;
  EXPECT_EQ(result.out.find("MFU"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace glim
