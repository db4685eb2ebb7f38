// `glim data`, and the formats that it packs in `glim train` and `glim eval`, as a user runs them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/runtime/scratch_folder.h"

namespace glim {
namespace {

using nlohmann::json;

void expect_error(const std::vector<std::string>& arguments, int exit_code, const std::vector<std::string>& parts) {
  const ProgramResult result = run_glim(arguments);
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  for (const std::string& part : parts) EXPECT_NE(result.err.find(part), std::string::npos) << part << " is not in: " << result.err;
}

TEST(DataShow, ARowTokenByToken) {
  const ScratchFolder folder;
  write_file(folder / "a.jsonl",
             "{\"prompt\": \"Q\\n\", \"completion\": \"ok\", \"id\": 7}\n{\"text\": \"\\u00e9\\\\\"}\n{\"text\": \"\"}\n{\"text\": \"much "
             "too long\"}\n");
  const ProgramResult shown = run_glim({"data", "show", folder / "a.jsonl", "--tokens", "8", "--ignore-key", "id", "--overlong", "drop"});
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  const size_t fingerprint = shown.out.find("fingerprint  ") + 13;
  EXPECT_EQ(shown.out.substr(0, fingerprint),
            "documents    4: 1 empty, 0 without a target, 0 split, 1 dropped (13 tokens)\n"
            "training     7 tokens (4 targets) of 2 pieces in 1 rows of 8, 12.5 % padding\n"
            "fingerprint  ");
  EXPECT_EQ(shown.out.substr(std::min(shown.out.size(), fingerprint + 32)),
            "\n\nrow 0 of epoch 0: 7 tokens in 2 segments, 4 targets\n"
            "   index segment position        id text      target text   counts\n"
            "       0       0        0        81 Q           -100        no\n"
            "       1       0        1        10 \\n           111 o      yes\n"
            "       2       0        2       111 o            107 k      yes\n"
            "       3       0        3       107 k           -100        no\n"
            "       4       1        0       195 \\xc3         169 \\xa9   yes\n"
            "       5       1        1       169 \\xa9          92 \\\\     yes\n"
            "       6       1        2        92 \\\\          -100        no\n"
            "       7 to 7: padding\n");
  const ProgramResult as_json =
      run_glim({"data", "show", folder / "a.jsonl", "--tokens", "8", "--ignore-key", "id", "--overlong", "drop", "--json"});
  const json report = json::parse(as_json.out);
  EXPECT_EQ(report["documents"], 4);
  EXPECT_EQ(report["dropped_tokens"], 13);
  EXPECT_EQ(report["training"]["targets"], 4);
  EXPECT_EQ(report["fingerprint"], shown.out.substr(fingerprint, 32));
  ASSERT_EQ(report["tokens"].size(), 7U);
  EXPECT_EQ(report["tokens"][4],
            (json{{"index", 4}, {"segment", 1}, {"position", 0}, {"id", 195}, {"text", "\\xc3"}, {"target", 169}, {"counts", true}}));
}

// What `data show` prints for a step is what training reads at that step, and packing does not change it.
TEST(DataShow, AConfigurationSaysEverything) {
  const ScratchFolder folder;
  std::string lines;
  for (int k = 0; k < 30; ++k) lines += "{\"prompt\": \"" + std::to_string(k * k) + "\", \"completion\": \" is a square\"}\n";
  write_file(folder / "a.jsonl", lines);
  write_file(folder / "v.jsonl", "{\"text\": \"held out\"}\n");
  const auto write_config = [&](const std::string& name, const std::string& data) {
    write_file(folder / (name + ".toml"),
               "model = \"muse_glimmer_tiny\"\n[data]\nfiles = [\"" + data +
                   "\"]\nvalidation = \"v.jsonl\"\n[train]\nsteps = 5\ntokens = 64\nmicro_steps = 2\nseed = 9\n");
    return folder / (name + ".toml");
  };
  const std::string direct = write_config("direct", "a.jsonl"), packed = write_config("packed", "a.tokens");
  const ProgramResult packing = run_glim({"data", "pack", direct, "--output", folder / "a.tokens"});
  ASSERT_EQ(packing.exit_code, 0) << packing.err;
  EXPECT_NE(packing.out.find("30 documents, 436 tokens of a vocabulary of 256"), std::string::npos) << packing.out;
  for (const std::vector<std::string>& row :
       {std::vector<std::string>{"--step", "7", "--micro-step", "1"}, {"--row", "3"}, {"--validation"}}) {
    std::vector<std::string> arguments{"data", "show", direct, "--json"};
    arguments.insert(arguments.end(), row.begin(), row.end());
    const ProgramResult one = run_glim(arguments);
    arguments[2] = packed;
    const ProgramResult other = run_glim(arguments);
    ASSERT_EQ(one.exit_code, 0) << one.err;
    ASSERT_EQ(other.exit_code, 0) << other.err;
    EXPECT_EQ(one.out, other.out);
    EXPECT_EQ(json::parse(one.out)["tokens_per_row"], 64);
  }
}

TEST(DataShow, Errors) {
  const ScratchFolder folder;
  write_file(folder / "a.jsonl", "{\"input_ids\": [1, 300]}\n{\"input_ids\": 5}\n");
  write_file(folder / "b.txt", "text");
  write_file(folder / "train.toml", "model = \"muse_glimmer_tiny\"\n[data]\nfile = [\"b.txt\"]\n[train]\nsteps = 5\n");
  expect_error({"data", "show", folder / "a.jsonl"}, 3, {"a.jsonl:2: 'input_ids' must be an array of integers, not a number"});
  expect_error({"data", "show", folder / "a.jsonl", "--model", "muse_glimmer_tiny"}, 3, {"a.jsonl:1: 'input_ids'[1] is 300", "0 to 255"});
  expect_error({"data", "show", folder / "b.txt", "--vocab", "300"}, 3, {"b.txt: text, but the model's file does not say"});
  expect_error({"data", "show", folder / "b.txt", "--vocab", "many"}, 2, {"--vocab", "'many'"});
  expect_error({"data", "show", folder / "b.txt", "--row", "1"}, 2, {"--row is 1, expected 0 to 0"});
  expect_error({"data", "show", folder / "b.txt", "--validation"}, 2, {"nothing is held out"});
  expect_error({"data", "show", folder / "b.txt", "--micro-step", "0"}, 2, {"--micro-step needs --step"});
  expect_error({"data", "show", folder / "b.txt", "--step", "0", "--micro-step", "1"}, 2, {"--micro-step is 1, expected 0 to 0"});
  expect_error({"data", "show", folder / "train.toml"}, 2, {"train.toml:3:1", "'file'", "did you mean 'files'"});
  expect_error({"data", "show", folder / "missing.txt"}, 5, {"missing.txt: cannot open"});
  expect_error({"data", "pack", folder / "b.txt", "--output", folder / "b.tokens"}, 2, {"--model or --vocab"});
  expect_error({"data", "pack", folder / "b.txt", "--output", folder / "b.bin", "--vocab", "bytes"}, 2, {".tokens"});
  expect_error({"data", "pack", folder / "b.txt", "--output", folder / "none/b.tokens", "--vocab", "bytes"}, 5, {"none/b.tokens"});
  expect_error({"data"}, 2, {"--help"});
  expect_error({"data", "shwo"}, 2, {"did you mean 'show'"});
  expect_error({"data", "show", folder / "b.txt", "--step", "9223372036854775807"}, 2, {"--step is 9223372036854775807"});
  expect_error({"data", "show", folder / "b.txt", "--rwo", "1"}, 2, {"did you mean '--row'"});
}

TEST(DataFormats, TrainAndEvalReadThem) {
  const ScratchFolder folder;
  std::string lines;
  for (int k = 0; k < 60; ++k) lines += "{\"prompt\": \"" + std::to_string(k) + "+1=\", \"completion\": \"abcabcabcabc\"}\n";
  write_file(folder / "a.jsonl", lines);
  write_file(
      folder / "train.toml",
      "model = \"muse_glimmer_tiny\"\nset = [\"hidden=32\", \"feed_forward=48\", \"num_heads=4\", \"num_kv_heads=2\", \"head_dim=8\", "
      "\"num_layers=2\"]\n[data]\nfiles = [\"a.jsonl\"]\nvalidation_fraction = 0.1\n[train]\nsteps = 40\ntokens = 64\nlearning_rate = "
      "1e-2\nwarmup_steps = 2\noutput = \"trained\"\n");
  ASSERT_EQ(run_glim({"data", "pack", folder / "train.toml", "--output", folder / "a.tokens"}).exit_code, 0);
  const ProgramResult trained = run_glim({"train", folder / "train.toml", "--json"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const auto evaluate = [&](const std::string& file) {
    const ProgramResult result = run_glim({"eval", folder / "trained", "--files", folder / file, "--tokens", "64", "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string direct = evaluate("a.jsonl");
  EXPECT_EQ(evaluate("a.tokens"), direct);
  const json report = json::parse(direct);
  EXPECT_EQ(report["num_valid"], 60 * 12);  // the completions, their first tokens included
  EXPECT_EQ(report["token_accuracy"].get<double>(), report["num_correct"].get<double>() / report["num_valid"].get<double>());
  EXPECT_LT(report["loss"].get<double>(), 1);  // three letters in turn: the prompts' digits are not among what counts
  expect_error({"eval", folder / "trained"}, 2, {"--files", "--text"});
}

}  // namespace
}  // namespace glim
