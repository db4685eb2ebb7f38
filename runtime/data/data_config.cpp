#include "runtime/data/data_config.h"

#include <fmt/format.h>

#include "engine/suggest.h"
#include "runtime/config_values.h"

namespace glim {

Result<Overlong> parse_overlong(std::string_view text) {
  constexpr std::string_view kNames[] = {"split", "drop"};
  if (text == kNames[0]) return Overlong::kSplit;
  if (text == kNames[1]) return Overlong::kDrop;
  return invalid_argument(fmt::format("'overlong' must be \"split\" or \"drop\", not \"{}\"{}", text, did_you_mean(text, kNames)));
}

Result<DataConfig> read_data_config(const TomlValue& table, const std::string& file) {
  DataConfig config;
  TableReader reader(table, "[data]");
  for (const auto& [key, paths] : {std::pair{"files", &config.files}, {"text", &config.text}, {"validation", &config.validation}}) {
    GLIM_TRY(take_names(reader, key, *paths));
    for (std::string& path : *paths) path = beside(file, path);
  }
  if (const TomlMember* fraction = table.find("validation_fraction"); fraction != nullptr && !config.validation.empty())
    return invalid_argument("'validation' names what is held out, so there is no 'validation_fraction'", fraction->where);
  GLIM_TRY(take_real(reader, "validation_fraction", 0, 0.9, config.validation_fraction));
  GLIM_ASSIGN(const Name overlong, reader.take_text("overlong"));
  if (!overlong.empty()) {
    const Result<Overlong> parsed = parse_overlong(overlong.text);
    if (!parsed) return invalid_argument(parsed.error().message, overlong.where);
    config.overlong = *parsed;
  }
  GLIM_TRY(take_names(reader, "ignored_keys", config.ignored_keys));
  GLIM_TRY(reader.finish());
  if (config.files.empty() && config.text.empty())
    return invalid_argument("'files' (or 'text') must name at least one file or folder", table.where);
  return config;
}

}  // namespace glim
