// Hostile arguments, environment and files: the documented exit code and one clear message, quickly and with little memory.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/cli/program.h"
#include "tests/resource_bounds.h"
#include "tests/runtime/scratch_folder.h"

namespace glim {
namespace {

namespace fs = std::filesystem;

using Environment = std::map<std::string, std::string>;

// `glim --version` is what starting the program takes.
void expect_refused(const std::vector<std::string>& arguments, int exit_code, const std::string& part,
                    const Environment& environment = {}) {
  SCOPED_TRACE(part);
  static const ProgramResult kStart = run_glim({"--version"});
  const ProgramResult result = run_glim(arguments, environment);
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(result.err.starts_with("glim: ")) << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err.substr(0, 1000);
  EXPECT_LT(result.err.size(), 2000U);
  EXPECT_LT(result.cpu_seconds - kStart.cpu_seconds, kMaxSeconds);
  EXPECT_LT(result.peak_bytes - kStart.peak_bytes, kMaxAdditionalBytes);
}

TEST(HostileArguments, Numbers) {
  const auto plan = [](const std::string& option, const std::string& value) {
    return std::vector<std::string>{"plan", "muse_glimmer_tiny", option, value};
  };
  for (const char* value : {"99999999999999999999", "-5", "1e3", "", " ", "five", "9223372036854775807", "2147483648", "nan"}) {
    expect_refused(plan("--tokens", value), 2, "--tokens");
  }
  expect_refused(plan("--set", "hidden=9999999999"), 2, "must be at most 2147483647, not 9999999999");
  expect_refused(plan("--set", "hidden=99999999999999999999"), 2, "hidden");
  expect_refused(plan("--set", "hidden=1e308"), 2, "hidden");
  expect_refused(plan("--set", "hidden=-1"), 2, "must be at least 1, not -1");
  expect_refused(plan("--set", "hidden="), 2, "hidden");
  expect_refused(plan("--set", "hidden=hidden"), 2, "'hidden' is defined in terms of itself: a cycle");
  expect_refused(plan("--set", "hidden=" + std::string(50'000, '(')), 2, "nested more than 16 deep");
  expect_refused(plan("--set", "num_layers=10001"), 2, "must be at most 10000, not 10001");
  expect_refused(plan("--set", "=1"), 2, "'=1' is not of the form name=value");
  expect_refused(plan("--set", std::string(100'000, 'x') + "=1"), 2, "has no dim, constant or flag");
  expect_refused({"check", "muse_glimmer_tiny", "--threads", "1000000000"}, 2, "--threads");
  expect_refused({"check", "muse_glimmer_tiny", "--threads", "-1"}, 2, "--threads");
}

TEST(HostileArguments, Environment) {
  const ScratchFolder scratch;
  write_file(scratch / "file", "not a folder");
  fs::create_directory(scratch / "empty");
  const std::vector<std::string> plan{"plan", "muse_glimmer_tiny"}, config{"plan", golden_folder("text_tiny")};
  expect_refused(plan, 5, "GLIM_MODELS) cannot be read: Not a directory", {{"GLIM_MODELS", scratch / "file"}});
  expect_refused(config, 5, "the folder cannot be read: Not a directory", {{"GLIM_MODELS", scratch / "file"}});
  expect_refused(plan, 5, "GLIM_MODELS) cannot be read: No such file", {{"GLIM_MODELS", scratch / "none"}});
  expect_refused(plan, 5, "GLIM_MODELS) cannot be read", {{"GLIM_MODELS", std::string(1500, 'x')}});
  expect_refused(plan, 2, "there is no file, folder or shipped model 'muse_glimmer_tiny'", {{"GLIM_MODELS", scratch / "empty"}});
  expect_refused(config, 2, "describes model_type 'muse_glimmer'", {{"GLIM_MODELS", scratch / "empty"}});
  fs::create_directory(scratch / "bad");
  write_file(scratch / "bad/muse_glimmer_tiny.toml", "\xff\xfe");
  expect_refused(plan, 2, "bad/muse_glimmer_tiny.toml:1:1:", {{"GLIM_MODELS", scratch / "bad"}});
  expect_refused(config, 2, "bad/muse_glimmer_tiny.toml:1:1:", {{"GLIM_MODELS", scratch / "bad"}});
  fs::create_directory(scratch / "double");
  for (const char* name : {"double/a.toml", "double/b.toml"}) write_file(scratch / name, "[hf]\nmodel_type = \"muse_glimmer\"\n");
  expect_refused(config, 2, "describe model_type 'muse_glimmer'", {{"GLIM_MODELS", scratch / "double"}});
  for (const char* value : {"banana", "-3", "1000000000", "99999999999999999999"}) {
    expect_refused({"check", "muse_glimmer_tiny"}, 2, "--threads", {{"GLIM_NUM_THREADS", value}});
  }
}

TEST(HostileArguments, Files) {
  const ScratchFolder scratch;
  const auto model = [](const std::string& path) { return std::vector<std::string>{"plan", path}; };
  fs::create_directory(scratch / "folder");
  expect_refused(model(scratch / "folder"), 5, "config.json");
  expect_refused(model("/dev/zero"), 3, "/dev/zero: the file has more than 1048576 bytes");
  expect_refused(model("/dev/null"), 2, "needs the key 'flow'");
  expect_refused(model(std::string(100'000, 'm')), 2, "there is no file, folder or shipped model");
  expect_refused(model("no\nsuch\x1b[31m"), 2, "no\\x0asuch\\x1b[31m");
  expect_refused(model(""), 2, "there is no file, folder or shipped model ''");
  write_file(scratch / "big.toml", std::string(2'000'000, '\n'));
  expect_refused(model(scratch / "big.toml"), 3, "big.toml: the file has more than 1048576 bytes");
  write_file(scratch / "deep.toml", "a = " + std::string(1'000'000, '['));
  expect_refused(model(scratch / "deep.toml"), 2, "deep.toml:1:37: arrays and tables are nested more than 32 deep");
  write_file(scratch / "config.json", std::string(3'000'000, '['));
  expect_refused(model(scratch / "config.json"), 3, "nested deeper than 32 levels");
  write_file(scratch / "large.json", "\"" + std::string(5'000'000, 'x') + "\"");
  expect_refused(model(scratch / "large.json"), 3, "the file has more than 4194304 bytes");
  write_file(scratch / "train.toml", "model = 5\n");
  expect_refused({"train", scratch / "train.toml"}, 2, "train.toml:1:9");
  expect_refused({"train", scratch / "missing.toml"}, 5, "missing.toml");
  ASSERT_EQ(::mkfifo((scratch / "pipe.safetensors").c_str(), 0600), 0);
  const std::string golden = golden_folder("text_tiny"), inputs = golden + "/case.safetensors";
  expect_refused({"run", golden, "--inputs", scratch / "pipe.safetensors", "--outputs", scratch / "out"}, 3, "this is a pipe");
  expect_refused({"run", golden, "--inputs", scratch / "folder", "--outputs", scratch / "out"}, 3, "folder");
  expect_refused({"run", golden, "--inputs", inputs, "--outputs", scratch / "no/such/out"}, 5, "no/such");
}

TEST(HostileArguments, PathsBelowALoopOfLinks) {
  const ScratchFolder scratch;
  fs::create_symlink("loop", scratch / "loop");
  const std::string golden = golden_folder("text_tiny"), loop = scratch / "loop/x", reason = "Too many levels of symbolic links";
  write_file(scratch / "text.txt", std::string(3000, 'a'));
  const std::string set = "set = [\"hidden=32\", \"feed_forward=48\", \"num_layers=1\"]\n";
  write_file(scratch / "train.toml", "model = \"muse_glimmer_tiny\"\n" + set +
                                         "[data]\ntext = [\"text.txt\"]\n[train]\nsteps = 1\ntokens = 64\noutput = \"run\"\n");
  const auto train = [&](const std::string& option, const std::string& value) {
    return std::vector<std::string>{"train", scratch / "train.toml", option, value};
  };
  expect_refused({"plan", loop}, 2, "there is no file, folder or shipped model");
  expect_refused({"train", loop}, 5, "loop/x: cannot be opened");
  expect_refused(train("--set", "train.output='" + loop + "'"), 5, reason);
  expect_refused(train("--resume", loop), 5, reason);
  expect_refused({"run", golden, "--inputs", loop, "--outputs", scratch / "out"}, 5, reason);
  expect_refused({"run", golden, "--inputs", golden + "/case.safetensors", "--outputs", loop}, 5, reason);
  expect_refused({"import", golden, "--output", loop}, 5, reason);
  expect_refused({"export", golden, "--output", loop}, 5, reason);
  expect_refused({"data", "pack", scratch / "text.txt", "--vocab", "bytes", "--output", loop + ".tokens"}, 5, reason);
  expect_refused({"data", "show", loop + ".txt"}, 5, reason);
  expect_refused({"graph", "muse_glimmer_tiny", "--format", "svg"}, 5, "TMPDIR may name one", {{"TMPDIR", loop}});
}

}  // namespace
}  // namespace glim
