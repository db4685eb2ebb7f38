#include "runtime/model_source.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "engine/quote.h"
#include "engine/suggest.h"
#include "models/hf_config.h"
#include "runtime/checkpoint/checkpoint.h"
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

// A run's folder stands for its final weights, or for its newest checkpoint while there are none.
std::string in_run_folder(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(fs::path(path) / "checkpoints", error) || fs::exists(fs::path(path) / kConfigName, error)) return path;
  if (fs::exists(fs::path(path) / "model" / kConfigName, error)) return (fs::path(path) / "model").string();
  const Result<NewestCheckpoint> newest = find_newest_checkpoint((fs::path(path) / "checkpoints").string());
  return newest && newest->found ? newest->found->path : path;
}

// MODEL as given, or the model of that name that ships with glim.
Result<std::string> find_model(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error)) return in_run_folder(path);
  std::vector<std::string> shipped;
  const std::string folder = models_folder();
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == ".toml") shipped.push_back(at->path().stem().string());
  }
  if (error)
    return Error{
        ErrorCode::kIo,
        fmt::format("there is no file {}, and the folder of model files (GLIM_MODELS) cannot be read: {}", quote(path), error.message()),
        {printable(folder)}};
  if (std::find(shipped.begin(), shipped.end(), path) != shipped.end()) return (fs::path(folder) / (path + ".toml")).string();
  return invalid_argument(fmt::format("there is no file, folder or shipped model {}{}", quote(path), did_you_mean(path, shipped)));
}

const char kModelsFolderAnchor = 0;  // lies in the program or library that this code is linked into

// Weights of `checkpoint` ("" = none) for a spec that has all but its settings.
Result<ModelSource> complete(ModelSource source, std::span<const std::string> settings, const std::string& checkpoint, bool must_exist) {
  for (const std::string& setting : settings) GLIM_TRY(set_value(source.spec, setting));
  std::error_code error;
  const bool has_weights =
      must_exist || fs::exists(fs::path(checkpoint) / kSingleName, error) || fs::exists(fs::path(checkpoint) / kIndexName, error);
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

}  // namespace

std::string models_folder() {
  if (const char* folder = std::getenv("GLIM_MODELS"); folder != nullptr) return folder;
  Dl_info here{};
  std::error_code error;
  std::vector<fs::path> places{fs::read_symlink("/proc/self/exe", error)};
  // Of a program this is argv[0], which says less than the link above.
  if (dladdr(&kModelsFolderAnchor, &here) != 0 && here.dli_fname != nullptr)
    places.insert(places.begin(), fs::canonical(here.dli_fname, error));
  for (const fs::path& place : places) {
    // PREFIX/bin/glim and PREFIX/lib/libglim.so, or PREFIX/lib/ARCHITECTURE/libglim.so
    const fs::path above = place.parent_path().parent_path();
    for (const fs::path& prefix : {above, above.parent_path()}) {
      const fs::path models = prefix / "share/glim/models";
      if (fs::is_directory(models, error)) return models.string();
    }
  }
  return GLIM_MODELS_DIR;
}

std::string model_text_name() { return models_folder() + "/<text>"; }

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
  return complete(std::move(source), settings, checkpoint, !weights.empty());
}

Result<ModelSource> open_model_text(std::string_view toml, std::span<const std::string> settings, const std::string& weights) {
  ModelSource source;
  GLIM_ASSIGN(source.spec, parse_spec(toml, model_text_name()));
  return complete(std::move(source), settings, weights, !weights.empty());
}

}  // namespace glim
