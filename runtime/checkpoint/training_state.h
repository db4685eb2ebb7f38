#pragma once
// All that a checkpoint holds besides tensors, and its text form, state.json.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error.h"

namespace glim {

using Settings = std::map<std::string, std::string>;  // name -> value

struct TrainingState {
  int64_t step = 0;  // optimizer steps done: the position in the data and in the learning-rate schedule
  int64_t skipped_in_a_row = 0;
  Settings identity;          // what must agree for a resumed run to be the same run: {"train.tokens", "512"}
  Settings choices;           // choices of algorithms that change bits: {"matrix_products", "eigen 3.4.0 avx2"}
  Settings algorithms;        // of matrix products, where they were chosen by timing: a resumed run takes them (Executor::algorithms)
  std::string configuration;  // the training TOML as text, for people; may be empty
  std::string hf_config;      // config.json; "" = the folder gets none
};

// step, skipped_in_a_row, identity, choices and algorithms (when there are any) as JSON. kInvalidArgument for text that is not UTF-8.
[[nodiscard]] Result<std::string> state_json(const TrainingState& state);
// kInvalidFile with `path`, for anything that state_json would not write.
[[nodiscard]] Result<TrainingState> parse_state_json(std::string_view text, const std::string& path);

// One entry per name that differs: "train.tokens was 512 and is 256 now", "model was not set and is x now".
[[nodiscard]] std::vector<std::string> differences(const Settings& then, const Settings& now);

}  // namespace glim
