#pragma once
// Spawns the glim program that was built beside these tests, as a user would.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace glim {

struct ProgramResult {
  int exit_code = -1;  // -1: a signal ended it
  std::string out, err;
  double cpu_seconds = 0;
  int64_t peak_bytes = 0;  // of memory that was resident
};
// `environment` is added to this process's own. Both streams go through files, so that a program that writes much never waits.
[[nodiscard]] ProgramResult run_glim(const std::vector<std::string>& arguments, const std::map<std::string, std::string>& environment = {});

// The same on a terminal of that many columns, which gets both streams: they are `out`.
[[nodiscard]] ProgramResult run_glim_on_terminal(const std::vector<std::string>& arguments, int columns);

// A shell script in which $GLIM is the program: for signals, pipes and what else needs more than one process.
[[nodiscard]] ProgramResult run_script(const std::string& script);

[[nodiscard]] std::string golden_folder(std::string_view name);  // tests/golden/NAME
[[nodiscard]] std::vector<std::string> golden_text_cases();      // names of all cases without images
[[nodiscard]] std::string models_source_folder();                // models/

// A tensor of a file, all numbers as doubles.
struct Values {
  std::vector<int64_t> shape;
  std::vector<double> at;
};
// Every tensor of a safetensors file; a failure of the test and nothing when it cannot be read.
[[nodiscard]] std::map<std::string, Values> read_tensors(const std::string& path);

}  // namespace glim
