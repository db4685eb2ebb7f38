#include "runtime/model_source.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "engine/quote.h"
#include "engine/suggest.h"
#include "models/hf_config.h"
#include "runtime/hf_names.h"

namespace glim {
namespace {

namespace fs = std::filesystem;

Scalar parse_setting(const std::string& text, const SourceLocation& where) {
  Scalar scalar;
  scalar.where = where;
  const char* end = text.data() + text.size();
  if (text == "true" || text == "false") {
    scalar.kind = Scalar::Kind::kBool;
    scalar.flag = text == "true";
  } else if (auto [at, error] = std::from_chars(text.data(), end, scalar.integer); error == std::errc() && at == end) {
    scalar.kind = Scalar::Kind::kInteger;
  } else if (auto [at_real, real_error] = std::from_chars(text.data(), end, scalar.real); real_error == std::errc() && at_real == end) {
    scalar.kind = Scalar::Kind::kReal;
  } else {
    scalar.kind = Scalar::Kind::kText;
    scalar.text = text;
  }
  return scalar;
}

// MODEL as given, or the model of that name that ships with glim.
Result<std::string> find_model(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error)) return path;
  std::vector<std::string> shipped;
  for (fs::directory_iterator at(models_folder(), error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == ".toml") shipped.push_back(at->path().stem().string());
  }
  if (error)
    return Error{
        ErrorCode::kIo,
        fmt::format("there is no file {}, and the folder of model files (GLIM_MODELS) cannot be read: {}", quote(path), error.message()),
        {printable(models_folder())}};
  if (std::find(shipped.begin(), shipped.end(), path) != shipped.end()) return (fs::path(models_folder()) / (path + ".toml")).string();
  return invalid_argument(fmt::format("there is no file, folder or shipped model {}{}", quote(path), did_you_mean(path, shipped)));
}

}  // namespace

std::string models_folder() {
  const char* folder = std::getenv("GLIM_MODELS");
  return folder != nullptr ? folder : GLIM_MODELS_DIR;
}

Status set_value(ModelSpec& spec, const std::string& setting) {
  const size_t equals = setting.find('=');
  if (equals == std::string::npos || equals == 0) return invalid_argument(fmt::format("{} is not of the form name=value", quote(setting)));
  const std::string name = setting.substr(0, equals);
  std::vector<std::string> known;
  for (std::vector<NamedScalar>* group : {&spec.dims, &spec.constants, &spec.flags}) {
    for (NamedScalar& entry : *group) {
      known.push_back(entry.name.text);
      if (entry.name.text != name) continue;
      entry.value = parse_setting(setting.substr(equals + 1), {"--set " + printable(setting), 0, 0});
      return ok();
    }
  }
  return invalid_argument(fmt::format("{} has no dim, constant or flag {}{}", spec.file, quote(name), did_you_mean(name, known)));
}

Result<ModelSource> open_model(const std::string& path, std::span<const std::string> settings, const std::string& weights) {
  GLIM_ASSIGN(const std::string found, find_model(path));
  ModelSource source;
  std::error_code error;
  const bool is_folder = fs::is_directory(found, error);
  const std::string checkpoint = !weights.empty() ? weights : is_folder ? found : "";
  if (is_folder || fs::path(found).extension() == ".json") {
    source.config_json = is_folder ? (fs::path(found) / kConfigName).string() : found;
    GLIM_ASSIGN(source.spec, spec_from_hf_config(source.config_json, models_folder()));
  } else {
    GLIM_ASSIGN(source.spec, load_spec(found));
  }
  for (const std::string& setting : settings) GLIM_TRY(set_value(source.spec, setting));
  const bool has_weights =
      !weights.empty() || fs::exists(fs::path(checkpoint) / kSingleName, error) || fs::exists(fs::path(checkpoint) / kIndexName, error);
  if (!checkpoint.empty() && has_weights) {
    GLIM_ASSIGN(HfFolder folder, HfFolder::open(checkpoint));
    for (BlockSpec& block : source.spec.blocks) {
      for (ParamSpec& param : block.params) {
        if (!param.tied_to.empty() && !param.hf.empty() && folder.find(param.hf.text) != nullptr) param.tied_to = {};
      }
    }
    source.checkpoint.emplace(std::move(folder));
  }
  return source;
}

}  // namespace glim
