#include "runtime/checkpoint/training_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/quote.h"
#include "engine/suggest.h"
#include "models/strict_json.h"

namespace glim {
namespace {

using nlohmann::json;

constexpr const char* kStep = "step";
constexpr const char* kSkipped = "skipped_in_a_row";
constexpr const char* kIdentity = "identity";
constexpr const char* kChoices = "choices";
constexpr const char* kAlgorithms = "algorithms";  // may be absent

Result<int64_t> count_of(const json& root, const char* key, const std::string& path) {
  const json& value = root.at(key);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return invalid_file(fmt::format("{}: {} must be a whole number below 2^63", path, key));
  return value.get<int64_t>();
}

Result<Settings> settings_of(const json& root, const char* key, const std::string& path) {
  const json& value = root.at(key);
  if (!value.is_object()) return invalid_file(fmt::format("{}: {} must be an object of strings", path, key));
  Settings settings;
  for (const auto& [name, text] : value.items()) {
    if (!text.is_string()) return invalid_file(fmt::format("{}: {}: {} must be a string", path, key, quote(name)));
    settings.emplace(name, text.get<std::string>());
  }
  return settings;
}

}  // namespace

Result<std::string> state_json(const TrainingState& state) {
  try {
    json root = {{kStep, state.step}, {kSkipped, state.skipped_in_a_row}, {kIdentity, state.identity}, {kChoices, state.choices}};
    if (!state.algorithms.empty()) root[kAlgorithms] = state.algorithms;
    return root.dump(2) + "\n";
  } catch (const json::exception&) {
    return invalid_argument("a setting of the run is not UTF-8, so a checkpoint cannot hold it");
  }
}

Result<TrainingState> parse_state_json(std::string_view text, const std::string& path) {
  GLIM_ASSIGN(const json root, parse_strict_json(text, path));
  if (!root.is_object()) return invalid_file(fmt::format("{}: expected an object", path));
  const std::vector<std::string_view> keys{kStep, kSkipped, kIdentity, kChoices};
  for (const auto& [key, value] : root.items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end() && key != kAlgorithms)
      return invalid_file(fmt::format("{}: unknown key {}{}", path, quote(key), did_you_mean(key, keys)));
  }
  for (const std::string_view key : keys) {
    if (!root.contains(std::string(key))) return invalid_file(fmt::format("{}: {} is missing", path, key));
  }
  TrainingState state;
  GLIM_ASSIGN(state.step, count_of(root, kStep, path));
  GLIM_ASSIGN(state.skipped_in_a_row, count_of(root, kSkipped, path));
  GLIM_ASSIGN(state.identity, settings_of(root, kIdentity, path));
  GLIM_ASSIGN(state.choices, settings_of(root, kChoices, path));
  if (root.contains(kAlgorithms)) {
    GLIM_ASSIGN(state.algorithms, settings_of(root, kAlgorithms, path));
  }
  return state;
}

std::vector<std::string> differences(const Settings& then, const Settings& now) {
  const auto value_of = [](const Settings& settings, const std::string& name) {
    const auto found = settings.find(name);
    return found == settings.end() ? "not set" : found->second.empty() ? "empty" : printable(found->second);
  };
  std::set<std::string> names;
  for (const auto* settings : {&then, &now}) {
    for (const auto& entry : *settings) names.insert(entry.first);
  }
  std::vector<std::string> out;
  for (const std::string& name : names) {
    const auto old_value = then.find(name), new_value = now.find(name);
    const bool both = old_value != then.end() && new_value != now.end();
    if (both && old_value->second == new_value->second) continue;
    out.push_back(fmt::format("{} was {} and is {} now", printable(name), value_of(then, name), value_of(now, name)));
  }
  return out;
}

}  // namespace glim
