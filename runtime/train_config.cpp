#include "runtime/train_config.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <numbers>

#include "engine/suggest.h"
#include "runtime/config_values.h"

namespace glim {
namespace {

constexpr int64_t kMaxMicroSteps = 1 << 20;
constexpr std::string_view kPolicies[] = {"none", "selective", "full", "auto"};

Status read_train(const TomlValue& value, const std::string& file, TrainConfig& config) {
  TableReader table(value, "[train]");
  int64_t seed = static_cast<int64_t>(config.seed);
  GLIM_TRY(take_integer(table, "tokens", 2, config.tokens));
  GLIM_TRY(take_integer(table, "micro_steps", 1, config.micro_steps));
  if (config.micro_steps > kMaxMicroSteps)
    return invalid_argument(fmt::format("'micro_steps' must be at most {}, not {}", kMaxMicroSteps, config.micro_steps), table.where());
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
  GLIM_ASSIGN(config.adamw.master_weights, table.take_flag("master_weights", true));
  GLIM_TRY(take_integer(table, "seed", 0, seed));
  GLIM_TRY(take_integer(table, "log_every", 1, config.log_every));
  GLIM_TRY(take_integer(table, "validate_every", 0, config.validate_every));
  GLIM_TRY(take_real(table, "peak_tflops", 0, 1e9, config.peak_tflops));
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
  GLIM_ASSIGN(config.strict, table.take_flag("strict", config.strict));
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

Status read_checkpoint(const TomlValue& value, CheckpointConfig& checkpoint) {
  TableReader table(value, "[checkpoint]");
  GLIM_TRY(take_integer(table, "every", 0, checkpoint.every));
  GLIM_TRY(take_integer(table, "keep_last", 1, checkpoint.keep_last));
  GLIM_TRY(take_integer(table, "keep_every", 0, checkpoint.keep_every));
  return table.finish();
}

bool is_bare_word(std::string_view text) {
  return !text.empty() && text.find_first_of("\"'[]{}#,\n\r") == std::string_view::npos && text.front() != ' ';
}

// "a.b=v" as a TOML document of its own, so that it is read and positioned as the file is.
Result<TomlValue> parse_override(const std::string& setting) {
  const std::string where = "--set " + setting;
  const size_t equals = setting.find('=');
  if (equals == std::string::npos || equals == 0)
    return invalid_argument(fmt::format("'{}' is not of the form table.key=value, such as train.steps=100", setting));
  Result<TomlValue> parsed = parse_toml(setting, where);
  const std::string value = setting.substr(equals + 1);
  if (parsed || !is_bare_word(value)) return parsed;
  Result<TomlValue> quoted = parse_toml(fmt::format("{}='{}'", setting.substr(0, equals), value), where);
  if (quoted) return quoted;
  return parsed;
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

Result<TrainConfig> load_train_config(const std::string& file, std::span<const std::string> settings) {
  TrainConfig config;
  GLIM_ASSIGN(config.source_text, read_text_file(file, kMaxTomlBytes));
  GLIM_ASSIGN(TomlValue root, parse_toml(config.source_text, file));
  for (const std::string& setting : settings) {
    GLIM_ASSIGN(TomlValue over, parse_override(setting));
    merge_toml(root, std::move(over));
    config.source_text += fmt::format("\n# --set {}\n", setting);
  }
  TableReader table(root, "the training configuration");
  GLIM_ASSIGN(const Name model, table.need_text("model"));
  config.model = beside(file, model.text);
  GLIM_TRY(take_names(table, "set", config.set));
  GLIM_ASSIGN(const Name weights, table.take_text("weights"));
  config.weights = weights.empty() ? "" : beside(file, weights.text);
  GLIM_ASSIGN(const TomlMember* data, table.need("data"));
  GLIM_ASSIGN(config.data, read_data_config(data->value, file));
  GLIM_ASSIGN(const TomlMember* train, table.need("train"));
  GLIM_TRY(read_train(train->value, file, config));
  if (const TomlMember* checkpoint = table.take("checkpoint")) GLIM_TRY(read_checkpoint(checkpoint->value, config.checkpoint));
  GLIM_TRY(table.finish());
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
