#include "models/parameters.h"

#include <fmt/format.h>

#include "engine/suggest.h"

namespace glim {
namespace {

std::string with_layer(std::string pattern, int64_t layer) {
  for (size_t at = pattern.find("{i}"); at != std::string::npos; at = pattern.find("{i}", at))
    pattern.replace(at, 3, std::to_string(layer));
  return pattern;
}

class Expansion {
 public:
  Expansion(const ModelSpec& spec, Names& names, DType real, size_t max_instances)
      : spec_(spec), names_(names), real_(real), max_instances_(max_instances) {}

  Result<ParameterTable> run() {
    for (const BlockSpec& block : spec_.blocks) {
      GLIM_ASSIGN(const int64_t layers, num_instances(block, names_));
      if (table_.parameters.size() + static_cast<size_t>(layers) * block.params.size() > max_instances_) {
        return invalid_argument(fmt::format("the model has more than {} parameters", max_instances_), block.name.where);
      }
      for (int64_t layer = 0; layer < layers; ++layer) {
        names_.enter_layer(block.count ? &block : nullptr, layer, layers);
        for (const ParamSpec& param : block.params) GLIM_TRY(add(block, param, layer));
      }
      names_.enter_layer(nullptr, 0, 0);
    }
    for (const Tied& tied : tied_) GLIM_TRY(tie(tied));
    GLIM_TRY(check_hf_names());
    return std::move(table_);
  }

 private:
  struct Tied {
    const ParamSpec* spec;
    std::string name;
    TensorType type;
    bool holds;
  };

  Status add(const BlockSpec& block, const ParamSpec& param, int64_t layer) {
    ModelParameter parameter;
    parameter.instance = instance_name(block, layer);
    parameter.name = parameter.instance + "." + param.name.text;
    if (param.when) {
      GLIM_ASSIGN(const bool exists, names_.condition(*param.when));
      if (!exists) {
        table_.index[parameter.name] = ParameterTable::kAbsent;
        return ok();
      }
    }
    GLIM_ASSIGN(parameter.type, evaluate_type(param.shape, param.dtype, real_, 1, param.name.where, names_));
    parameter.hf_name = with_layer(param.hf.text, layer);
    parameter.init = param.init;
    GLIM_ASSIGN(const Number init_value, names_.number(param.init_value));
    parameter.init_value = init_value.real;
    if (param.init == InitKind::kNormal && parameter.init_value < 0)
      return invalid_argument("a standard deviation cannot be negative", param.init_value.where);
    if (!param.tied_to.empty()) {
      bool holds = true;
      if (param.tied_when) {
        GLIM_ASSIGN(holds, names_.condition(*param.tied_when));
      }
      tied_.push_back({&param, parameter.name, parameter.type, holds});
      if (holds) return ok();
    }
    table_.index[parameter.name] = table_.parameters.size();
    table_.parameters.push_back(std::move(parameter));
    table_.places.push_back(param.name.where);
    return ok();
  }

  Status tie(const Tied& tied) {
    const Name& target = tied.spec->tied_to;
    const auto found = table_.index.find(target.text);
    if (found == table_.index.end() || found->second == ParameterTable::kAbsent) {
      for (const Tied& other : tied_) {
        if (other.holds && other.name == target.text) {
          return invalid_argument(fmt::format("'{}' is tied itself{}", target.text,
                                              other.name == tied.name ? ", to itself" : ": tie both to the same parameter"),
                                  target.where);
        }
      }
      std::vector<std::string> known;
      for (const auto& [name, index] : table_.index) known.push_back(name);
      return invalid_argument(fmt::format("unknown parameter '{}'{}", target.text, did_you_mean(target.text, known)), target.where);
    }
    ModelParameter& parameter = table_.parameters[found->second];
    if (parameter.type != tied.type) {
      return invalid_argument(fmt::format("'{}' has type {}, but '{}' has {}: they cannot be tied", tied.name, to_string(tied.type),
                                          target.text, to_string(parameter.type)),
                              target.where);
    }
    if (!tied.holds) return ok();
    parameter.tied.push_back({tied.name, with_layer(tied.spec->hf.text, 0)});
    ties_[tied.name] = found->second;
    return ok();
  }

  // Also completes the index: only now, so that a tie to a tied name is seen as one.
  Status check_hf_names() {
    table_.index.insert(ties_.begin(), ties_.end());
    std::map<std::string, std::string> seen;
    for (size_t k = 0; k < table_.parameters.size(); ++k) {
      const ModelParameter& parameter = table_.parameters[k];
      std::vector<ParameterName> all = parameter.tied;
      all.push_back({parameter.name, parameter.hf_name});
      for (const ParameterName& name : all) {
        if (name.hf_name.empty()) continue;
        const auto [entry, is_new] = seen.emplace(name.hf_name, name.name);
        if (!is_new)
          return invalid_argument(
              fmt::format("duplicate name: '{}' and '{}' are both called '{}' in a checkpoint", entry->second, name.name, name.hf_name),
              table_.places[k]);
      }
    }
    return ok();
  }

  const ModelSpec& spec_;
  Names& names_;
  DType real_;
  size_t max_instances_;
  ParameterTable table_;
  std::vector<Tied> tied_;
  std::map<std::string, size_t> ties_;
};

}  // namespace

Result<ParameterTable> expand_parameters(const ModelSpec& spec, Names& names, DType real, size_t max_instances) {
  return Expansion(spec, names, real, max_instances).run();
}

Result<int64_t> num_instances(const BlockSpec& block, Names& names) {
  if (!block.count) return int64_t{1};
  GLIM_ASSIGN(const int64_t layers, names.extent(*block.count, 1, fmt::format("the layer count of '{}'", block.name.text)));
  if (layers > kMaxLayers)
    return invalid_argument(fmt::format("the layer count of '{}' must be at most {}, not {}", block.name.text, kMaxLayers, layers),
                            block.count->where);
  return layers;
}

std::string instance_name(const BlockSpec& block, int64_t layer) {
  return block.count ? fmt::format("{}.{}", block.name.text, layer) : block.name.text;
}

Result<TensorType> evaluate_type(const std::vector<Scalar>& shape, SpecDType dtype, DType real, int64_t minimum,
                                 const SourceLocation& where, Names& names) {
  std::vector<int64_t> dims;
  for (const Scalar& scalar : shape) {
    GLIM_ASSIGN(const int64_t dim, names.extent(scalar, minimum, "a dimension"));
    dims.push_back(dim);
  }
  Result<Shape> made = make_shape(dims);
  if (!made) return invalid_argument(made.error().message, where);
  const DType element = dtype == SpecDType::kI32 ? DType::kI32 : dtype == SpecDType::kReal ? real : accumulation_dtype(real);
  return TensorType{element, *made};
}

Result<std::vector<ModelParameter>> list_parameters(const ModelSpec& spec, DType real) {
  Names names(spec);
  GLIM_TRY(names.check_all());
  GLIM_ASSIGN(ParameterTable table, expand_parameters(spec, names, real));
  return std::move(table.parameters);
}

int64_t num_elements(const std::vector<ModelParameter>& parameters) {
  int64_t total = 0;  // at most kMaxInstances shapes of 2^59: saturate instead of overflowing
  for (const ModelParameter& parameter : parameters) {
    if (__builtin_add_overflow(total, parameter.type.shape.numel(), &total)) return INT64_MAX;
  }
  return total;
}

}  // namespace glim
