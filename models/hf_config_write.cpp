#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/hf_config.h"
#include "models/names.h"
#include "models/parameters.h"

namespace glim {
namespace {

using Json = nlohmann::ordered_json;

void put(Json& root, std::string_view path, Json value) {
  Json* at = &root;
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.')) {
    at = &(*at)[std::string(path.substr(0, dot))];
    path.remove_prefix(dot + 1);
  }
  (*at)[std::string(path)] = std::move(value);
}

Json as_json(const Quantity& quantity) {
  if (const bool* flag = std::get_if<bool>(&quantity)) return *flag;
  const Number& number = std::get<Number>(quantity);
  return number.is_integer ? Json(number.integer) : Json(number.real);
}

bool equal(const Quantity& a, const Quantity& b) {
  if (a.index() != b.index()) return false;
  if (const bool* flag = std::get_if<bool>(&a)) return *flag == std::get<bool>(b);
  return std::get<Number>(a).real == std::get<Number>(b).real;
}

// What config.json holds for one layer, such that reading it back gives the value of the pattern.
Result<Json> layer_element(const HfLayers& layers, const Quantity& value, Names& names) {
  for (const NamedScalar& mapping : layers.map) {
    GLIM_ASSIGN(const Quantity mapped, names.quantity(mapping.value));
    if (equal(mapped, value)) return Json(mapping.name.text);
  }
  if (!layers.map.empty())
    return invalid_argument(fmt::format("'{}' has no entry for a value of '{}'", layers.path.text, layers.name.text), layers.path.where);
  if (!layers.nonzero) return as_json(value);
  const bool* flag = std::get_if<bool>(&value);
  if (flag != nullptr && !*flag) return Json(0);
  if (!layers.equals) return Json(1);
  GLIM_ASSIGN(const Number number, names.number(*layers.equals));
  return as_json(number);
}

}  // namespace

Result<std::string> hf_config_from_spec(const ModelSpec& spec, DType dtype) {
  if (spec.hf.model_type.empty())
    return invalid_argument(fmt::format("{} has no [hf] model_type, so there is no config.json for it", spec.file));
  Json root;
  root["model_type"] = spec.hf.model_type.text;
  root["dtype"] = dtype == DType::kF32 ? "float32" : dtype == DType::kF64 ? "float64" : "bfloat16";
  Names names(spec);
  for (const HfValue& value : spec.hf.values) {
    GLIM_ASSIGN(const Quantity quantity, names.look_up(value.name.text, value.name.where));
    bool is_default = false;
    if (value.otherwise) {
      GLIM_ASSIGN(const Quantity otherwise, names.quantity(*value.otherwise));
      is_default = equal(otherwise, quantity) && std::holds_alternative<Number>(quantity) && std::get<Number>(quantity).real < 0;
    }
    put(root, value.paths[0].text, is_default ? Json(nullptr) : as_json(quantity));  // "no padding token" is null there
  }
  for (const HfLayers& layers : spec.hf.layers) {
    const BlockSpec& block = *spec.find_block(layers.stack.text);
    GLIM_ASSIGN(const int64_t count, num_instances(block, names));
    Json array = Json::array();
    for (int64_t layer = 0; layer < count; ++layer) {
      names.enter_layer(&block, layer, count);
      GLIM_ASSIGN(const Quantity value, names.look_up(layers.name.text, layers.name.where));
      names.enter_layer(nullptr, 0, 0);
      GLIM_ASSIGN(Json element, layer_element(layers, value, names));
      array.push_back(std::move(element));
    }
    put(root, layers.path.text, std::move(array));
  }
  for (const HfExpectation& expectation : spec.hf.expect) {
    if (expectation.allowed.empty()) continue;
    const Scalar& first = expectation.allowed[0];
    const Json value = first.kind == Scalar::Kind::kText      ? Json(first.text)
                       : first.kind == Scalar::Kind::kBool    ? Json(first.flag)
                       : first.kind == Scalar::Kind::kInteger ? Json(first.integer)
                                                              : Json(first.real);
    put(root, expectation.path.text, value);
  }
  if (spec.vocabulary == "bytes") put(root, kVocabularyPath, "bytes");
  return root.dump(2) + "\n";
}

Result<std::string> checkpoint_config(const ModelSpec& spec, DType dtype) {
  if (spec.hf.model_type.empty()) return std::string();
  return hf_config_from_spec(spec, dtype);
}

}  // namespace glim
