// `glim train`, `eval` and `generate` on a text file, as a user runs them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/safetensors.h"
#include "tests/cli/program.h"
#include "tests/runtime/scratch_folder.h"

namespace glim {
namespace {

const char* const kText = "A quick brown fox jumps over the lazy dog, and the dog sleeps on; the fox runs away into the wood. ";

struct Trained {
  ScratchFolder folder;
  std::vector<nlohmann::json> lines, events;
  ProgramResult result;

  explicit Trained(const std::string& settings, const std::string& model = "muse_glimmer_tiny",
                   const std::map<std::string, std::string>& environment = {}) {
    std::string text;
    for (int k = 0; k < 40; ++k) text += kText + std::to_string(k) + "\n";
    write_file(folder / "text.txt", text);
    write_file(
        folder / "train.toml",
        "model = \"" + model +
            "\"\nset = [\"hidden=32\", \"feed_forward=48\", \"num_heads=4\", \"num_kv_heads=2\", \"head_dim=8\", \"num_layers=2\"]\n" +
            "[data]\ntext = [\"text.txt\"]\n[train]\ntokens = 64\nmicro_steps = 2\nwarmup_steps = 2\nlog_every = 1\noutput = "
            "\"trained\"\n" +
            settings);
    result = run_glim({"train", folder / "train.toml", "--json"}, environment);
    std::istringstream stream(result.out);
    for (std::string line; std::getline(stream, line);) {
      nlohmann::json parsed = nlohmann::json::parse(line);
      (parsed.contains("event") ? events : lines).push_back(std::move(parsed));
    }
  }
  [[nodiscard]] std::string last_checkpoint() const {
    std::string last;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "trained/checkpoints"))
      last = std::max(last, entry.path().filename().string());
    return last;
  }
  [[nodiscard]] std::string weights() const { return read_file(folder / "trained/model/model.safetensors"); }
};

TEST(Train, LossFallsAndTheFolderLoads) {
  const Trained trained("steps = 30\nlearning_rate = 1e-2\n");
  ASSERT_EQ(trained.result.exit_code, 0) << trained.result.err;
  ASSERT_EQ(trained.lines.size(), 31U);  // 30 steps and the validation at the end
  for (size_t k = 0; k < 30; ++k) {
    const nlohmann::json& line = trained.lines[k];
    EXPECT_EQ(line["step"], k + 1);
    for (const char* key : {"loss", "token_accuracy", "learning_rate", "gradient_norm", "tokens_per_second", "gflop_per_second", "seconds"})
      EXPECT_TRUE(line[key].is_number()) << key;
    EXPECT_FALSE(line["skipped"].get<bool>());
  }
  const double first = trained.lines[0]["loss"].get<double>(), last = trained.lines[29]["loss"].get<double>();
  EXPECT_NEAR(first, std::log(256.0), 0.3);
  EXPECT_LT(last, 0.75 * first);
  EXPECT_GT(trained.lines[29]["token_accuracy"].get<double>(), trained.lines[0]["token_accuracy"].get<double>() + 0.1);
  const double validation = trained.lines[30]["validation_loss"].get<double>();
  EXPECT_LT(validation, 0.8 * first);

  const std::string folder = trained.folder / "trained/model", text = trained.folder / "text.txt";
  const ProgramResult eval = run_glim({"eval", folder, "--text", text, "--tokens", "64", "--json"});
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  const nlohmann::json report = nlohmann::json::parse(eval.out);
  EXPECT_NEAR(report["loss"].get<double>(), last, 0.3);
  EXPECT_EQ(report["token_accuracy"].get<double>(), report["num_correct"].get<double>() / report["num_valid"].get<double>());

  const std::vector<std::string> sample{"generate",      folder, "--prompt", "A quick", "-n",    "24",
                                        "--temperature", "0.8",  "--top-p",  "0.9",     "--seed"};
  const auto with_seed = [&](const char* seed, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = sample;
    arguments.emplace_back(seed);
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = run_glim(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string seven = with_seed("7");
  EXPECT_TRUE(seven.starts_with("A quick"));
  EXPECT_EQ(with_seed("7"), seven);
  EXPECT_NE(with_seed("8"), seven);
  EXPECT_EQ(nlohmann::json::parse(with_seed("7", {"--json"}))["tokens"].size(), 24U);

  // Training goes on from the folder.
  const Trained more("steps = 1\nlearning_rate = 0\nfinal_learning_rate = 0\n[more]\n");
  EXPECT_EQ(more.result.exit_code, 2);  // an unknown table
  write_file(trained.folder / "more.toml",
             "model = \"trained/model\"\n[data]\ntext = [\"text.txt\"]\n[train]\nsteps = 1\ntokens = 64\nmicro_steps = 2\nlearning_rate = "
             "0\nfinal_learning_rate = 0\nlog_every = 1\n");
  const ProgramResult again = run_glim({"train", trained.folder / "more.toml", "--json"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_LT(nlohmann::json::parse(again.out.substr(0, again.out.find('\n')))["loss"].get<double>(), 0.8 * first);
}

TEST(Train, TwoRunsHaveTheSameBitsWhateverTheThreads) {
  const std::string settings = "steps = 3\nlearning_rate = 1e-2\n";
  const Trained one(settings, "muse_glimmer_tiny", {{"GLIM_NUM_THREADS", "1"}}),
      again(settings, "muse_glimmer_tiny", {{"GLIM_NUM_THREADS", "1"}}), three(settings, "muse_glimmer_tiny", {{"GLIM_NUM_THREADS", "3"}}),
      other("seed = 2\n" + settings);
  for (const Trained* run : {&one, &again, &three, &other}) ASSERT_EQ(run->result.exit_code, 0) << run->result.err;
  EXPECT_EQ(again.weights(), one.weights());
  EXPECT_EQ(three.weights(), one.weights());
  EXPECT_NE(other.weights(), one.weights());
  for (size_t k = 0; k < one.lines.size(); ++k) {
    for (const char* key : {"loss", "gradient_norm", "validation_loss"})
      EXPECT_EQ(one.lines[k].value(key, -1.0), three.lines[k].value(key, -1.0)) << key;
  }
}

TEST(Train, TheSecondFamilyTrains) {
  const Trained trained("steps = 20\nlearning_rate = 1e-2\ndtype = \"bf16\"\nrematerialise = \"full\"\n", "llama_tiny");
  ASSERT_EQ(trained.result.exit_code, 0) << trained.result.err;
  EXPECT_LT(trained.lines[19]["loss"].get<double>(), 0.8 * trained.lines[0]["loss"].get<double>());
  const ProgramResult eval = run_glim(
      {"eval", trained.folder / "trained/model", "--text", trained.folder / "text.txt", "--tokens", "64", "--dtype", "bf16", "--json"});
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
}

// Steps so large that weights overflow: gradients stop being finite, steps are skipped, and after five in a row training gives up.
TEST(Train, DivergenceEndsWithItsExitCode) {
  const Trained trained("steps = 60\nlearning_rate = 1000\nfinal_learning_rate = 1000\nweight_decay = 1000\n", "llama_tiny");
  EXPECT_EQ(trained.result.exit_code, 6) << trained.result.err;
  EXPECT_NE(trained.result.err.find("5 steps in a row"), std::string::npos) << trained.result.err;
  ASSERT_GE(trained.lines.size(), 5U);
  for (size_t k = trained.lines.size() - 4; k < trained.lines.size(); ++k) EXPECT_TRUE(trained.lines[k]["skipped"].get<bool>());
  EXPECT_FALSE(std::filesystem::exists(trained.folder / "trained/model"));
  EXPECT_NE(trained.result.err.find("first not finite: "), std::string::npos) << trained.result.err;
  EXPECT_TRUE(trained.last_checkpoint().starts_with("step-")) << "what was reached is kept";
  const Trained refused("steps = 5\nlearning_rate = 1e30\n");
  EXPECT_EQ(refused.result.exit_code, 2);
  EXPECT_NE(refused.result.err.find("'learning_rate' must be a number from 0 to 1000"), std::string::npos) << refused.result.err;
}

// A signal while it trains: saved, exit code 75; then it goes on to the bits of a run that nobody disturbed.
TEST(Train, ASignalSavesAndTheRunGoesOn) {
  const std::string settings = "steps = 80\nlearning_rate = 1e-2\n[checkpoint]\nevery = 30\n";
  const Trained straight(settings);
  ASSERT_EQ(straight.result.exit_code, 0) << straight.result.err;
  for (const char* signal : {"TERM", "INT"}) {
    const ScratchFolder folder;
    std::filesystem::copy(straight.folder / "text.txt", folder / "text.txt");
    std::filesystem::copy(straight.folder / "train.toml", folder / "train.toml");
    const ProgramResult stopped = run_script("cd " + folder.path() +
                                             "\n$GLIM train train.toml & pid=$!\n"
                                             "while [ $(cat trained/metrics.jsonl 2>/dev/null | wc -l) -lt 5 ]; do sleep 0.02; done\n"
                                             "kill -" +
                                             signal + " $pid; wait $pid");
    ASSERT_EQ(stopped.exit_code, 75) << stopped.out << stopped.err;
    EXPECT_NE(stopped.err.find("stopped by a signal after step "), std::string::npos) << stopped.err;
    EXPECT_NE(stopped.err.find("--resume auto"), std::string::npos) << stopped.err;
    EXPECT_EQ(run_glim({"train", folder / "train.toml"}).exit_code, 2);  // a run is there, and nobody said --resume
    const ProgramResult resumed = run_glim({"train", folder / "train.toml", "--resume", "auto"});
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_NE(resumed.out.find("resumed after step "), std::string::npos) << resumed.out;
    EXPECT_EQ(read_file(folder / "trained/model/model.safetensors"), straight.weights());
  }
}

TEST(Train, ACheckpointIsAModelAndARunFolderIsOneToo) {
  const Trained trained("steps = 4\n[checkpoint]\nevery = 2\n");
  ASSERT_EQ(trained.result.exit_code, 0) << trained.result.err;
  const auto loss = [&](const std::string& model) {
    const ProgramResult eval =
        run_glim({"eval", trained.folder / model, "--text", trained.folder / "text.txt", "--tokens", "64", "--json"});
    EXPECT_EQ(eval.exit_code, 0) << eval.err;
    return eval.exit_code == 0 ? nlohmann::json::parse(eval.out)["loss"].get<double>() : 0.0;
  };
  const double last = loss("trained/model");
  EXPECT_EQ(loss("trained/checkpoints/step-00000004"), last);
  EXPECT_NE(loss("trained/checkpoints/step-00000002"), last);
  EXPECT_EQ(loss("trained"), last);
  std::filesystem::remove_all(trained.folder / "trained/model");
  EXPECT_EQ(loss("trained"), last);  // the newest checkpoint
}

TEST(Train, SettingsFromOutsideWinAndWrongOnesAreNamed) {
  const Trained trained("steps = 2\n");
  ASSERT_EQ(trained.result.exit_code, 0) << trained.result.err;
  const auto run = [&](const std::vector<std::string>& settings) {
    std::vector<std::string> words{"train", trained.folder / "train.toml", "--json"};
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    return run_glim(words);
  };
  const ProgramResult three = run({"train.steps=3", "train.output=other", "train.dtype=f64", "data.validation_fraction=0"});
  ASSERT_EQ(three.exit_code, 0) << three.err;
  EXPECT_TRUE(std::filesystem::exists(trained.folder / "other/checkpoints/step-00000003"));
  EXPECT_NE(read_file(trained.folder / "other/train.toml").find("# --set train.steps=3"), std::string::npos);
  EXPECT_EQ(three.out.find("validation"), std::string::npos);
  const auto expect_error = [&](const std::string& setting, const std::string& message) {
    const ProgramResult result = run({setting});
    EXPECT_EQ(result.exit_code, 2) << setting;
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
  };
  expect_error("train.stesp=3", "--set train.stesp=3:1:7: ");
  expect_error("train.stesp=3", "did you mean 'steps'?");
  expect_error("train.steps=three", "'steps' must be an integer of at least 1");
  expect_error("train.steps", "is not of the form table.key=value");
  expect_error("checkpoint.evry=1", "did you mean 'every'?");
  expect_error("checkpoint.keep_last=0", "'keep_last' must be an integer of at least 1");
  expect_error("trian.steps=3", "did you mean 'train'?");
}

// The third step as a timeline; a run of fewer steps gives its last one, and a file that cannot be written ends nothing.
TEST(Train, ATraceShowsOneStep) {
  const Trained plain("steps = 4\n");
  ASSERT_EQ(plain.result.exit_code, 0) << plain.result.err;
  const auto traced = [&](const std::string& file, const std::string& steps) {
    return run_glim(
        {"train", plain.folder / "train.toml", "--trace", file, "--set", "train.output=traced" + steps, "--set", "train.steps=" + steps});
  };
  for (const auto& [steps, title] : {std::pair("4", "step 3, cpu"), std::pair("2", "step 2, cpu")}) {
    const std::string file = plain.folder / "trace.json";
    const ProgramResult result = traced(file, steps);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const nlohmann::json events = nlohmann::json::parse(read_file(file)).at("traceEvents");
    EXPECT_NE(events.at(0).at("args").at("name").get<std::string>().find(title), std::string::npos) << events.at(0);
    std::vector<std::string> programs;
    size_t num_steps = 0;
    for (const nlohmann::json& event : events) {
      if (event.at("ph") == "X" && event.at("tid") == 0) programs.push_back(event.at("name"));
      num_steps += event.at("ph") == "X" && event.at("tid") == 1 ? 1 : 0;
    }
    EXPECT_EQ(programs, (std::vector<std::string>{"first", "next", "update"}));
    EXPECT_GT(num_steps, 50U);
  }
  EXPECT_EQ(read_file(plain.folder / "traced4/model/model.safetensors"), plain.weights());
  const ProgramResult nowhere = traced(plain.folder / "none/trace.json", "3");
  EXPECT_EQ(nowhere.exit_code, 0) << nowhere.err;
  EXPECT_NE(nowhere.out.find("warning: no trace: "), std::string::npos) << nowhere.out;
}

TEST(Train, ADryRunWritesNothing) {
  const Trained trained("steps = 2\n");
  ASSERT_EQ(trained.result.exit_code, 0) << trained.result.err;
  const std::vector<std::string> words{"train", trained.folder / "train.toml", "--dry-run", "--set", "train.output=other"};
  const ProgramResult text = run_glim(words);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  for (const char* part : {"parameters", "documents", "rows of 64", "epochs", "GFLOP a step", "activations", "checkpoints"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
  std::vector<std::string> json = words;
  json.emplace_back("--json");
  const ProgramResult plan = run_glim(json);
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  const nlohmann::json report = nlohmann::json::parse(plan.out);
  EXPECT_EQ(report["steps"], 2);
  EXPECT_GT(report["data"]["training"]["rows"].get<int>(), 0);
  size_t total = 0;
  for (const auto& [name, bytes] : report["arenas"].items()) total += bytes.get<size_t>();
  // All tensors of a checkpoint are copied before it is written.
  size_t state = 0;
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const Result<SafetensorsFile> file = SafetensorsFile::open(trained.folder / "trained/checkpoints/step-00000002/" + name);
    ASSERT_TRUE(file) << file.error().to_string();
    for (const FileTensor& tensor : file->tensors()) state += tensor.data.size();
  }
  EXPECT_EQ(report["snapshot_bytes"], state);
  EXPECT_EQ(report["checkpoint_bytes"], state);
  EXPECT_EQ(report["memory_bytes"], total + state);
  EXPECT_NE(text.out.find("\n  snapshot"), std::string::npos) << text.out;
  // Where nothing is kept, nothing is copied.
  write_file(trained.folder / "kept_nowhere.toml",
             "model = \"muse_glimmer_tiny\"\n[data]\ntext = [\"text.txt\"]\n[train]\nsteps = 2\ntokens = 64\n");
  const ProgramResult nowhere = run_glim({"train", trained.folder / "kept_nowhere.toml", "--dry-run", "--json"});
  ASSERT_EQ(nowhere.exit_code, 0) << nowhere.err;
  const nlohmann::json small = nlohmann::json::parse(nowhere.out);
  EXPECT_EQ(small["snapshot_bytes"], 0);
  total = 0;
  for (const auto& [name, bytes] : small["arenas"].items()) total += bytes.get<size_t>();
  EXPECT_EQ(small["memory_bytes"], total);
  EXPECT_FALSE(std::filesystem::exists(trained.folder / "other"));
}

// The name of a folder may be any bytes; JSON is UTF-8.
TEST(Train, AFolderWhoseNameIsNotUtf8) {
  const Trained trained("steps = 1\n");
  ASSERT_EQ(trained.result.exit_code, 0) << trained.result.err;
  const std::string folder = trained.folder / "na\xefve\xff";
  std::filesystem::create_directory(folder);
  write_file(folder + "/own.toml", "extends = \"muse_glimmer_tiny.toml\"\n");
  for (const auto& entry : std::filesystem::directory_iterator(models_source_folder())) {
    if (entry.path().extension() == ".toml") std::filesystem::copy(entry.path(), folder + "/" + entry.path().filename().string());
  }
  std::filesystem::copy(trained.folder / "text.txt", folder + "/text.txt");
  std::string config = read_file(trained.folder / "train.toml");
  write_file(folder + "/train.toml", config.replace(config.find("muse_glimmer_tiny"), 17, "own.toml"));
  const ProgramResult plan = run_glim({"train", folder + "/train.toml", "--dry-run", "--json"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_NE(nlohmann::json::parse(plan.out)["model"].get<std::string>().find("na\xef\xbf\xbdve\xef\xbf\xbd/own.toml"), std::string::npos)
      << plan.out;
  const ProgramResult run = run_glim({"train", folder + "/train.toml", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) EXPECT_TRUE(nlohmann::json::parse(line).contains("step")) << line;
  EXPECT_EQ(run_glim({"train", folder + "/train.toml", "--resume", "auto", "--json"}).exit_code, 0);
  const ProgramResult eval = run_glim({"eval", folder + "/trained", "--text", folder + "/text.txt", "--tokens", "64", "--json"});
  EXPECT_EQ(eval.exit_code, 0) << eval.err;
}

// The signal comes while a long validation is under way: it ends at once, and the run that goes on does it from its beginning.
TEST(Train, ASignalEndsAValidation) {
  const Trained straight("steps = 2\nlearning_rate = 1e-2\nvalidate_every = 1\n[checkpoint]\nevery = 1\n");
  ASSERT_EQ(straight.result.exit_code, 0) << straight.result.err;
  const auto records = [](const std::string& file) {
    std::vector<nlohmann::json> out;
    std::istringstream lines(read_file(file));
    for (std::string line; std::getline(lines, line);) {
      nlohmann::json record = nlohmann::json::parse(line);
      for (const char* key : {"tokens_per_second", "gflop_per_second", "resident_bytes", "seconds"}) record.erase(key);
      if (!record.contains("event")) out.push_back(std::move(record));
    }
    return out;
  };
  const ScratchFolder folder;
  std::string text;
  for (int k = 0; k < 500; ++k) text += kText + std::to_string(k) + "\n";  // some 400 held-out rows
  write_file(folder / "text.txt", text);
  write_file(folder / "train.toml", read_file(straight.folder / "train.toml"));
  const std::string train = "$GLIM train train.toml --set data.validation_fraction=0.5";
  const ProgramResult whole = run_script("cd " + folder.path() + " && " + train + " && mv trained straight");
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const ProgramResult stopped = run_script("cd " + folder.path() + "\n" + train +
                                           " & pid=$!\n"
                                           "while ! grep -q loss trained/metrics.jsonl 2>/dev/null; do sleep 0.01; done\n"
                                           "kill -TERM $pid; wait $pid");
  ASSERT_EQ(stopped.exit_code, 75) << stopped.out << stopped.err;
  EXPECT_NE(stopped.err.find("stopped by a signal after step 1;"), std::string::npos) << stopped.err;
  EXPECT_EQ(records(folder / "trained/metrics.jsonl").size(), 1U) << "half a validation was recorded";
  EXPECT_LT(stopped.cpu_seconds, whole.cpu_seconds / 2);
  const ProgramResult resumed = run_script("cd " + folder.path() + " && " + train + " --resume auto");
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(records(folder / "trained/metrics.jsonl"), records(folder / "straight/metrics.jsonl"));
  EXPECT_EQ(read_file(folder / "trained/model/model.safetensors"), read_file(folder / "straight/model/model.safetensors"));
}

// No file may grow beyond 50 KiB, so that no checkpoint can be written.
TEST(Train, TheLastSaveThatFailsHasItsExitCode) {
  const Trained trained("steps = 6\n[checkpoint]\nevery = 2\n");
  ASSERT_EQ(trained.result.exit_code, 0) << trained.result.err;
  const std::string train = "$GLIM train train.toml --set train.output=other";
  const ProgramResult failed = run_script("cd " + trained.folder.path() + "; trap '' XFSZ; ulimit -f 100; " + train);
  EXPECT_EQ(failed.exit_code, 5) << failed.err;
  for (const char* part : {"warning: not saved, training goes on: the checkpoint of step 2: ", "the checkpoint of step 4: ",
                           "not saved, trying again: the checkpoint of step 6: ", "File too large", "step     6/6"})
    EXPECT_NE(failed.out.find(part), std::string::npos) << part << "\n" << failed.out;
  EXPECT_NE(failed.err.find("glim: the checkpoint of step 6: "), std::string::npos) << failed.err;
  EXPECT_FALSE(std::filesystem::exists(trained.folder / "other/model"));
  const ProgramResult again = run_script("cd " + trained.folder.path() + "; " + train + " --resume auto");
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(read_file(trained.folder / "other/model/model.safetensors"), trained.weights());
}

}  // namespace
}  // namespace glim
