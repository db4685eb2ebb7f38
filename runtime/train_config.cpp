#include "runtime/train_config.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <numbers>

#include "engine/suggest.h"
#include "models/toml_table.h"

namespace glim {
namespace {

constexpr std::string_view kPolicies[] = {"none", "selective", "full", "auto"};

// A path of the file, unless it is absolute or names something that ships with glim.
std::string beside(const std::string& file, const std::string& path) {
  const std::filesystem::path full = std::filesystem::path(file).parent_path() / path;
  std::error_code error;
  return std::filesystem::path(path).is_absolute() || !std::filesystem::exists(full, error) ? path : full.string();
}

Error bad(const Scalar& scalar, std::string_view key, std::string_view expected) {
  return invalid_argument(fmt::format("'{}' must be {}", key, expected), scalar.where);
}

Status take_integer(TableReader& table, std::string_view key, int64_t minimum, int64_t& value) {
  GLIM_ASSIGN(const std::optional<Scalar> scalar, table.take_scalar(key));
  if (!scalar) return ok();
  if (scalar->kind != Scalar::Kind::kInteger || scalar->integer < minimum)
    return bad(*scalar, key, fmt::format("an integer of at least {}", minimum));
  value = scalar->integer;
  return ok();
}

Status take_real(TableReader& table, std::string_view key, double minimum, double maximum, double& value) {
  GLIM_ASSIGN(const std::optional<Scalar> scalar, table.take_scalar(key));
  if (!scalar) return ok();
  const bool is_integer = scalar->kind == Scalar::Kind::kInteger;
  const double number = is_integer ? static_cast<double>(scalar->integer) : scalar->real;
  if ((!is_integer && scalar->kind != Scalar::Kind::kReal) || number < minimum || number > maximum) {
    return bad(*scalar, key, fmt::format("a number from {} to {}", minimum, maximum));
  }
  value = number;
  return ok();
}

Status take_names(TableReader& table, std::string_view key, std::vector<std::string>& names) {
  const TomlMember* member = table.take(key);
  if (member == nullptr) return ok();
  GLIM_ASSIGN(const std::vector<Name> found, to_names(member->value, key));
  for (const Name& name : found) names.push_back(name.text);
  return ok();
}

Status read_data(const TomlValue& value, const std::string& file, TrainConfig& config) {
  TableReader table(value, "[data]");
  GLIM_TRY(take_names(table, "text", config.text));
  for (std::string& path : config.text) path = beside(file, path);
  GLIM_TRY(take_real(table, "validation_fraction", 0, 0.9, config.validation_fraction));
  return table.finish();
}

Status read_train(const TomlValue& value, const std::string& file, TrainConfig& config) {
  TableReader table(value, "[train]");
  int64_t seed = static_cast<int64_t>(config.seed);
  GLIM_TRY(take_integer(table, "tokens", 2, config.tokens));
  GLIM_TRY(take_integer(table, "micro_steps", 1, config.micro_steps));
  GLIM_TRY(take_integer(table, "steps", 1, config.steps));
  GLIM_TRY(take_real(table, "max_seconds", 0, 1e9, config.max_seconds));
  GLIM_TRY(take_real(table, "learning_rate", 0, 1e3, config.learning_rate));
  GLIM_TRY(take_real(table, "final_learning_rate", 0, 1e3, config.final_learning_rate));
  GLIM_TRY(take_integer(table, "warmup_steps", 0, config.warmup_steps));
  GLIM_TRY(take_real(table, "beta1", 0, 0.999999, config.adamw.beta1));
  GLIM_TRY(take_real(table, "beta2", 0, 0.999999, config.adamw.beta2));
  GLIM_TRY(take_real(table, "eps", 1e-30, 1, config.adamw.eps));
  GLIM_TRY(take_real(table, "weight_decay", 0, 1e3, config.adamw.weight_decay));
  GLIM_TRY(take_real(table, "max_norm", 0, 1e9, config.adamw.max_norm));
  GLIM_TRY(take_integer(table, "seed", 0, seed));
  GLIM_TRY(take_integer(table, "log_every", 1, config.log_every));
  GLIM_TRY(take_integer(table, "validate_every", 0, config.validate_every));
  config.seed = static_cast<uint64_t>(seed);
  GLIM_ASSIGN(const Name dtype, table.take_text("dtype"));
  if (!dtype.empty()) {
    const std::optional<DType> parsed = parse_dtype(dtype.text);
    if (!parsed || !is_float(*parsed))
      return invalid_argument(fmt::format("'dtype' must be \"f32\", \"f64\" or \"bf16\", not \"{}\"", dtype.text), dtype.where);
    config.dtype = *parsed;
  }
  GLIM_ASSIGN(const Name backend, table.take_text("backend"));
  if (!backend.empty()) {
    Result<Backend> parsed = parse_backend(backend.text);
    if (!parsed) return invalid_argument(parsed.error().message, backend.where);
    config.backend = *parsed;
  }
  GLIM_ASSIGN(const Name policy, table.take_text("rematerialise"));
  if (!policy.empty()) {
    Result<Rematerialise> parsed = parse_rematerialise(policy.text);
    if (!parsed) return invalid_argument(parsed.error().message, policy.where);
    config.rematerialise = *parsed;
  }
  GLIM_ASSIGN(const Name output, table.take_text("output"));
  if (!output.empty()) {
    const bool absolute = std::filesystem::path(output.text).is_absolute();
    config.output = absolute ? output.text : (std::filesystem::path(file).parent_path() / output.text).string();
  }
  return table.finish();
}

}  // namespace

Result<Rematerialise> parse_rematerialise(std::string_view text) {
  for (size_t k = 0; k < std::size(kPolicies); ++k) {
    if (kPolicies[k] == text) return static_cast<Rematerialise>(k);
  }
  return invalid_argument(
      fmt::format("'{}' is no rematerialisation policy (none, selective, full, auto){}", text, did_you_mean(text, kPolicies)));
}

std::string_view to_string(Rematerialise policy) { return kPolicies[static_cast<size_t>(policy)]; }

Result<TrainConfig> load_train_config(const std::string& file) {
  GLIM_ASSIGN(const TomlValue root, read_toml(file));
  TrainConfig config;
  TableReader table(root, "the training configuration");
  GLIM_ASSIGN(const Name model, table.need_text("model"));
  config.model = beside(file, model.text);
  GLIM_TRY(take_names(table, "set", config.set));
  GLIM_ASSIGN(const Name weights, table.take_text("weights"));
  config.weights = weights.empty() ? "" : beside(file, weights.text);
  GLIM_ASSIGN(const TomlMember* data, table.need("data"));
  GLIM_TRY(read_data(data->value, file, config));
  GLIM_ASSIGN(const TomlMember* train, table.need("train"));
  GLIM_TRY(read_train(train->value, file, config));
  GLIM_TRY(table.finish());
  if (config.text.empty()) return invalid_argument("'text' must name at least one file or folder", data->where);
  if (config.steps == 0) return invalid_argument("'steps' is missing: the number of optimizer steps", train->where);
  return config;
}

double learning_rate_at(const TrainConfig& config, int64_t step) {
  if (step < config.warmup_steps) return config.learning_rate * static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps);
  const double span = static_cast<double>(std::max<int64_t>(1, config.steps - config.warmup_steps));
  const double progress = std::min(1.0, static_cast<double>(step - config.warmup_steps) / span);
  return config.final_learning_rate +
         0.5 * (config.learning_rate - config.final_learning_rate) * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace glim
