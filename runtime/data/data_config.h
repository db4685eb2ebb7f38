#pragma once
// The [data] table of a training configuration: which documents, how they become rows, and what is held out.
#include <string>
#include <string_view>
#include <vector>

#include "engine/error.h"
#include "models/toml_file.h"

namespace glim {

enum class Overlong : uint8_t { kSplit, kDrop };  // what happens to a document of more than T tokens

struct DataConfig {
  std::vector<std::string> files;       // .txt, .jsonl, .tokens (made by `glim data pack`), or folders of them
  std::vector<std::string> text;        // read as text whatever their extension, or folders of .txt
  std::vector<std::string> validation;  // like `files`; when there are any, nothing of the others is held out
  double validation_fraction = 0.02;    // 0 to under 1
  Overlong overlong = Overlong::kSplit;
  std::vector<std::string> ignored_keys;  // of JSONL documents; any other unknown key is an error
};

// `file` holds the table: relative paths are relative to it.
[[nodiscard]] Result<DataConfig> read_data_config(const TomlValue& table, const std::string& file);
[[nodiscard]] Result<Overlong> parse_overlong(std::string_view text);

}  // namespace glim
