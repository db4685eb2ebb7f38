#pragma once
// Reading one table of a configuration file. Every error stands at the place of the value.
#include <string>
#include <string_view>
#include <vector>

#include "models/toml_table.h"

namespace glim {

// A path of the file, unless it is absolute or names something that is not beside the file (a model that ships with glim).
[[nodiscard]] std::string beside(const std::string& file, const std::string& path);

// Each leaves `value` alone when the key is absent.
Status take_integer(TableReader& table, std::string_view key, int64_t minimum, int64_t& value);
Status take_real(TableReader& table, std::string_view key, double minimum, double maximum, double& value);
Status take_names(TableReader& table, std::string_view key, std::vector<std::string>& names);  // a string or an array of them; appends

}  // namespace glim
