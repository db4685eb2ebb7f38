#include "models/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/suggest.h"
#include "engine/type.h"
#include "models/names.h"
#include "models/parameters.h"
#include "models/strict_json.h"
#include "models/toml_file.h"

namespace glim {
namespace {

using Json = nlohmann::json;

Result<Json> parse_config(std::string_view text, const std::string& file) {
  GLIM_ASSIGN(Json root, parse_strict_json(text, file, kMaxConfigValues));
  if (!root.is_object()) return invalid_file("a config is a JSON object", {file});
  return root;
}

// The value at "a.b.c", or null where it is absent or the JSON null.
const Json* find_path(const Json& root, std::string_view path) {
  const Json* at = &root;
  while (true) {
    const size_t dot = path.find('.');
    if (!at->is_object()) return nullptr;
    const auto member = at->find(std::string(path.substr(0, dot)));
    if (member == at->end() || member->is_null()) return nullptr;
    at = &*member;
    if (dot == std::string_view::npos) return at;
    path.remove_prefix(dot + 1);
  }
}

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

// A number or a flag as the file would have written it; nothing for other values and for integers over 63 bits.
std::optional<Scalar> json_scalar(const Json& value, const std::string& file) {
  Scalar scalar;
  scalar.where = {file};
  if (value.is_boolean()) {
    scalar.kind = Scalar::Kind::kBool;
    scalar.flag = value.get<bool>();
  } else if (value.is_number_integer()) {
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    scalar.integer = value.get<int64_t>();
    scalar.real = static_cast<double>(scalar.integer);
  } else if (value.is_number_float()) {
    scalar.kind = Scalar::Kind::kReal;
    scalar.real = value.get<double>();
  } else {
    return std::nullopt;
  }
  return scalar;
}

class Filler {
 public:
  Filler(ModelSpec spec, const Json& root, const std::string& file) : spec_(std::move(spec)), root_(root), file_(file) {}

  Result<ModelSpec> run() {
    for (const HfExpectation& expectation : spec_.hf.expect) GLIM_TRY(check(expectation));
    const HfSpec hf = spec_.hf;
    for (const HfValue& value : hf.values) GLIM_TRY(fill(value));
    for (const HfLayers& layers : hf.layers) GLIM_TRY(fill(layers));
    if (const Json* vocabulary = find_path(root_, kVocabularyPath); vocabulary != nullptr && *vocabulary == "bytes")
      spec_.vocabulary = "bytes";
    return std::move(spec_);
  }

 private:
  Error error(std::string message) const { return invalid_argument(std::move(message), {file_}); }

  Status check(const HfExpectation& expectation) const {
    const Json* value = find_path(root_, expectation.path.text);
    if (value == nullptr) return ok();  // the default of the model's own code
    std::string allowed;
    for (const Scalar& scalar : expectation.allowed) {
      bool same = false;
      switch (scalar.kind) {
        case Scalar::Kind::kText: same = value->is_string() && value->get_ref<const std::string&>() == scalar.text; break;
        case Scalar::Kind::kBool: same = value->is_boolean() && value->get<bool>() == scalar.flag; break;
        default: same = value->is_number() && value->get<double>() == scalar.real; break;
      }
      if (same) return ok();
      const std::string text = scalar.kind == Scalar::Kind::kText   ? fmt::format("\"{}\"", scalar.text)
                               : scalar.kind == Scalar::Kind::kBool ? fmt::format("{}", scalar.flag)
                                                                    : fmt::format("{}", scalar.real);
      allowed += (allowed.empty() ? "" : " or ") + text;
    }
    return error(
        fmt::format("'{}' is {}; this model supports only {}", expectation.path.text, shown(*value), allowed.empty() ? "null" : allowed));
  }

  Status fill(const HfValue& value) {
    for (const Name& path : value.paths) {
      const Json* found = find_path(root_, path.text);
      if (found == nullptr) continue;
      std::optional<Scalar> scalar = json_scalar(*found, file_);
      if (NamedScalar* dim = find(spec_.dims, value.name.text)) {
        if (!scalar || scalar->kind != Scalar::Kind::kInteger || scalar->integer < 1 || scalar->integer > kMaxDim) {
          return error(fmt::format("'{}' must be an integer from 1 to {}, not {}", path.text, kMaxDim, shown(*found)));
        }
        dim->value = *scalar;
      } else if (NamedScalar* constant = find(spec_.constants, value.name.text)) {
        if (!scalar || scalar->kind == Scalar::Kind::kBool)
          return error(fmt::format("'{}' must be a number, not {}", path.text, shown(*found)));
        constant->value = *scalar;
      } else {
        if (!scalar || scalar->kind != Scalar::Kind::kBool)
          return error(fmt::format("'{}' must be true or false, not {}", path.text, shown(*found)));
        find(spec_.flags, value.name.text)->value = *scalar;
      }
      return ok();
    }
    if (!value.otherwise) return error(fmt::format("'{}' is missing; it sets '{}'", value.paths[0].text, value.name.text));
    for (std::vector<NamedScalar>* list : {&spec_.dims, &spec_.constants, &spec_.flags}) {
      if (NamedScalar* named = find(*list, value.name.text)) named->value = *value.otherwise;
    }
    return ok();
  }

  Status fill(const HfLayers& layers) {
    const Json* array = find_path(root_, layers.path.text);
    if (array == nullptr) return ok();
    if (!array->is_array())
      return error(fmt::format("'{}' must be an array with one element per layer, not {}", layers.path.text, shown(*array)));
    const auto block =
        std::find_if(spec_.blocks.begin(), spec_.blocks.end(), [&](const BlockSpec& b) { return b.name.text == layers.stack.text; });
    Names names(spec_);
    GLIM_ASSIGN(const int64_t count, num_instances(*block, names));
    if (static_cast<int64_t>(array->size()) != count) {
      return error(fmt::format("'{}' has {} elements, but the model has {} layers", layers.path.text, array->size(), count));
    }
    std::vector<Scalar> values;
    for (size_t layer = 0; layer < array->size(); ++layer) {
      GLIM_ASSIGN(Scalar value, element(layers, (*array)[layer], layer, names));
      values.push_back(std::move(value));
    }
    for (PatternSpec& pattern : block->pattern) {
      if (pattern.name.text != layers.name.text) continue;
      const bool was_flag = pattern.values[0].kind == Scalar::Kind::kBool;
      for (size_t layer = 0; layer < values.size(); ++layer) {
        if ((values[layer].kind == Scalar::Kind::kBool) != was_flag) {
          return error(fmt::format("'{}[{}]' is {}, which is not {}", layers.path.text, layer, shown((*array)[layer]),
                                   was_flag ? "a flag" : "a number"));
        }
      }
      pattern.anchor = Anchor::kEach;
      pattern.values = values;
    }
    return ok();
  }

  Result<Scalar> element(const HfLayers& layers, const Json& json, size_t layer, Names& names) const {
    const std::string place = fmt::format("'{}[{}]'", layers.path.text, layer);
    if (!layers.map.empty()) {
      std::vector<std::string> known;
      for (const NamedScalar& mapping : layers.map) {
        if (json.is_string() && json.get_ref<const std::string&>() == mapping.name.text) return mapping.value;
        known.push_back(mapping.name.text);
      }
      return error(fmt::format("{} is {}; this model supports only {}", place, shown(json), fmt::join(known, ", ")));
    }
    std::optional<Scalar> scalar = json_scalar(json, file_);
    if (!scalar || (layers.nonzero && scalar->kind == Scalar::Kind::kBool))
      return error(fmt::format("{} must be a number, not {}", place, shown(json)));
    if (layers.equals && scalar->kind != Scalar::Kind::kBool && scalar->real != 0) {
      GLIM_ASSIGN(const Number expected, names.number(*layers.equals));
      if (scalar->real != expected.real) {
        return error(fmt::format("{} is {}, but '{}' of the whole model is {}: layer {} is inconsistent", place, shown(json),
                                 layers.equals->text, expected.real, layer));
      }
    }
    if (layers.nonzero) {
      scalar->flag = scalar->real != 0;
      scalar->kind = Scalar::Kind::kBool;
    }
    return *scalar;
  }

  static NamedScalar* find(std::vector<NamedScalar>& list, std::string_view name) {
    const auto found = std::find_if(list.begin(), list.end(), [&](const NamedScalar& item) { return item.name.text == name; });
    return found == list.end() ? nullptr : &*found;
  }

  ModelSpec spec_;
  const Json& root_;
  const std::string& file_;
};

Result<std::string> model_type_of(const Json& root, const std::string& file) {
  const Json* type = find_path(root, "model_type");
  if (type == nullptr || !type->is_string()) return invalid_argument("'model_type' is missing; it chooses the model file", {file});
  return type->get<std::string>();
}

}  // namespace

Result<ModelSpec> fill_from_hf_config(ModelSpec spec, std::string_view json, const std::string& config_file) {
  GLIM_ASSIGN(const Json root, parse_config(json, config_file));
  GLIM_ASSIGN(const std::string model_type, model_type_of(root, config_file));
  if (spec.hf.model_type.text != model_type) {
    return invalid_argument(fmt::format("'model_type' is '{}', but {} describes '{}'", model_type, spec.file, spec.hf.model_type.text),
                            {config_file});
  }
  return Filler(std::move(spec), root, config_file).run();
}

Result<ModelSpec> spec_from_hf_config(const std::string& config_file, const std::string& models_dir) {
  GLIM_ASSIGN(const std::string text, read_text_file(config_file, kMaxConfigBytes));
  GLIM_ASSIGN(const Json root, parse_config(text, config_file));
  GLIM_ASSIGN(const std::string model_type, model_type_of(root, config_file));
  std::error_code failed;
  std::vector<std::string> files;
  for (std::filesystem::directory_iterator at(models_dir, failed), end; !failed && at != end; at.increment(failed)) {
    if (at->path().extension() == ".toml") files.push_back(at->path().string());
  }
  if (failed) return Error{ErrorCode::kIo, fmt::format("the folder cannot be read: {}", failed.message()), {models_dir}};
  std::sort(files.begin(), files.end());  // folders have no order of their own
  std::vector<std::string> known;
  std::string chosen;
  for (const std::string& file : files) {
    GLIM_ASSIGN(const TomlValue tree, read_toml(file));
    const TomlMember* hf = tree.find("hf");
    const TomlMember* type = hf == nullptr ? nullptr : hf->value.find("model_type");
    if (type == nullptr) continue;
    known.push_back(type->value.text);
    if (type->value.text != model_type) continue;
    if (!chosen.empty())
      return invalid_argument(fmt::format("both this file and {} describe model_type '{}'", chosen, model_type), type->value.where);
    chosen = file;
  }
  if (chosen.empty()) {
    return invalid_argument(fmt::format("no model file in {} describes model_type '{}' (there are: {}){}", models_dir, model_type,
                                        fmt::join(known, ", "), did_you_mean(model_type, known)),
                            {config_file});
  }
  GLIM_ASSIGN(ModelSpec spec, load_spec(chosen));
  return Filler(std::move(spec), root, config_file).run();
}

}  // namespace glim
