#include "tests/cli/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "runtime/convert.h"
#include "runtime/safetensors.h"
#include "tests/runtime/scratch_folder.h"

namespace glim {

namespace {

ProgramResult run_program(std::vector<std::string> words, const std::map<std::string, std::string>& environment) {
  const ScratchFolder scratch;
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!environment.contains(std::string(text.substr(0, text.find('='))))) variables.emplace_back(text);
  }
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const std::string out = scratch / "out", err = scratch / "err";
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  EXPECT_EQ(error, 0) << "cannot start " << words[0];
  if (error != 0) return {};
  int status = 0;
  rusage usage{};
  EXPECT_EQ(wait4(pid, &status, 0, &usage), pid);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6; };
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err), seconds(usage.ru_utime) + seconds(usage.ru_stime),
          int64_t{usage.ru_maxrss} * 1024};
}

}  // namespace

ProgramResult run_glim(const std::vector<std::string>& arguments, const std::map<std::string, std::string>& environment) {
  std::vector<std::string> words{GLIM_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run_program(std::move(words), environment);
}

ProgramResult run_glim_on_terminal(const std::vector<std::string>& arguments, int columns) {
  std::vector<std::string> words{GLIM_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  winsize size{};
  size.ws_row = 25;
  size.ws_col = static_cast<unsigned short>(columns);
  int terminal = -1, end = -1;
  EXPECT_EQ(::openpty(&terminal, &end, nullptr, nullptr, &size), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) posix_spawn_file_actions_adddup2(&actions, end, stream);
  posix_spawn_file_actions_addclose(&actions, terminal);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(end);
  EXPECT_EQ(error, 0) << "cannot start " << words[0];
  ProgramResult result;
  char buffer[4096];
  for (ssize_t n = 0; error == 0 && (n = ::read(terminal, buffer, sizeof buffer)) > 0;) result.out.append(buffer, static_cast<size_t>(n));
  ::close(terminal);
  int status = 0;
  if (error == 0 && ::waitpid(pid, &status, 0) == pid && WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

ProgramResult run_script(const std::string& script) { return run_program({"/bin/sh", "-c", script}, {{"GLIM", GLIM_PROGRAM}}); }

std::string golden_folder(std::string_view name) { return std::string(GLIM_SOURCE_DIR "/tests/golden/") + std::string(name); }

std::vector<std::string> golden_text_cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(GLIM_SOURCE_DIR "/tests/golden")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("text_") || name.starts_with("llama_")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string models_source_folder() { return GLIM_SOURCE_DIR "/models"; }

std::map<std::string, Values> read_tensors(const std::string& path) {
  std::map<std::string, Values> tensors;
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  EXPECT_TRUE(file) << file.error().to_string();
  if (!file) return tensors;
  for (const FileTensor& tensor : file->tensors()) {
    Values values{tensor.spec.shape, {}};
    values.at.resize(tensor.data.size() * 8 / static_cast<size_t>(bits_of(tensor.spec.dtype)));
    const Status status =
        convert_elements(tensor.spec.dtype, tensor.data, FileDType::kF64, std::as_writable_bytes(std::span(values.at)), tensor.spec.name);
    EXPECT_TRUE(status) << status.error().to_string();
    tensors[tensor.spec.name] = std::move(values);
  }
  return tensors;
}

}  // namespace glim
