#include "runtime/check_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/passes/pass_list.h"
#include "runtime/model.h"
#include "runtime/random.h"

namespace glim {
namespace {

constexpr ProgramKind kKind = ProgramKind::kFirst;

Result<Model> make_model(const ModelSpec& spec, const OpTable& table, const CheckOptions& options, std::vector<std::string> disabled) {
  CompileOptions compile_options;
  compile_options.real = DType::kF64;
  compile_options.runtime_dims = {{"T", options.tokens}, {"G", options.segments}, {"R", 1}};
  compile_options.programs = {kKind};
  compile_options.driver.disabled = std::move(disabled);
  GLIM_ASSIGN(CompiledModel compiled, compile(spec, table, compile_options));
  GLIM_ASSIGN(Model model, Model::create(std::move(compiled), options.num_threads));
  // Parameters all over their range: at their initial values, norm weights would be constant and small errors invisible.
  model.initialise(options.seed);
  for (const ModelParameter& parameter : model.compiled().parameters) {
    const std::span<std::byte> bytes = model.state_bytes(parameter.name);
    const uint64_t stream = make_stream(options.seed, "check." + parameter.name);
    for (size_t i = 0; i < bytes.size() / sizeof(double); ++i) {
      double value = 0;
      std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
      value = (parameter.init == InitKind::kConstant ? value : 0) + options.scale * normal_draw(stream, i);
      std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
    }
  }
  const auto& inputs = model.compiled().inputs;
  const auto tokens_input = std::find_if(inputs.begin(), inputs.end(), [](const ModelInput& input) { return input.name == "tokens"; });
  if (tokens_input == inputs.end() || !tokens_input->range) return invalid_argument("the model has no input 'tokens' with a range");
  const uint64_t stream = make_stream(options.seed, "tokens");
  std::vector<int32_t> tokens, labels, lengths;
  for (int64_t i = 0; i < options.tokens; ++i) {
    const auto draw = [&](uint64_t k) {
      return static_cast<int32_t>(uniform_draw(stream, 4 * static_cast<uint64_t>(i) + k) *
                                  static_cast<double>(tokens_input->range->second + 1));
    };
    tokens.push_back(draw(0));
    labels.push_back(uniform_draw(stream, 4 * static_cast<uint64_t>(i) + 1) < 0.25 ? -100 : draw(2));
  }
  for (int64_t g = 0; g < options.segments; ++g) {
    lengths.push_back(static_cast<int32_t>(options.tokens * (g + 1) / options.segments - options.tokens * g / options.segments));
  }
  GLIM_TRY(model.set_inputs({{"tokens", tokens}, {"labels", labels}, {"row_lengths", lengths}}));
  return model;
}

std::vector<double> as_doubles(std::span<const std::byte> bytes) {
  std::vector<double> values(bytes.size() / sizeof(double));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

double relative_distance(const std::vector<double>& a, const std::vector<double>& reference) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    difference += (a[i] - reference[i]) * (a[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

// The loss with a parameter moved by `step` along a direction that is drawn again each time.
Result<double> loss_along(Model& model, const ModelParameter& parameter, const std::vector<double>& at, uint64_t stream, double step) {
  std::vector<double> moved = at;
  for (size_t i = 0; i < moved.size(); ++i) moved[i] += step * normal_draw(stream, i);
  GLIM_TRY(model.set_state(parameter.name, std::as_bytes(std::span(moved))));
  GLIM_TRY(model.run(kKind));
  GLIM_TRY(model.set_state(parameter.name, std::as_bytes(std::span(at))));
  return model.scalar(kKind, "loss");
}

}  // namespace

Result<std::vector<CheckLine>> check_model(const ModelSpec& spec, const OpTable& table, const CheckOptions& options) {
  std::vector<CheckLine> lines;
  GLIM_ASSIGN(Model model, make_model(spec, table, options, {}));
  GLIM_TRY(model.run(kKind));
  const std::vector<ModelParameter>& parameters = model.compiled().parameters;
  std::vector<std::vector<double>> gradients;
  for (const ModelParameter& parameter : parameters) gradients.push_back(as_doubles(model.state_bytes(gradient_name(parameter.name))));
  const double loss = model.scalar(kKind, "loss");

  GLIM_TRY(model.run(kKind));
  bool is_same = model.scalar(kKind, "loss") == loss;
  for (size_t k = 0; k < parameters.size(); ++k)
    is_same = is_same && as_doubles(model.state_bytes(gradient_name(parameters[k].name))) == gradients[k];
  lines.push_back({"the same run twice: differing bits", is_same ? 0.0 : 1.0, 0});

  for (size_t k = 0; k < parameters.size(); ++k) {
    const uint64_t stream = make_stream(options.seed, "direction." + parameters[k].name);
    const std::vector<double> at = as_doubles(model.state_bytes(parameters[k].name));
    double along = 0, scale = 0;
    for (size_t i = 0; i < at.size(); ++i) along += gradients[k][i] * normal_draw(stream, i);
    for (const double g : gradients[k]) scale += g * g;
    // Fourth-order central difference: the truncation error is far below rounding.
    const double h = 1e-3 / std::sqrt(static_cast<double>(at.size()) + 1);
    double f[4];
    constexpr double kSteps[] = {1, -1, 2, -2};
    for (int i = 0; i < 4; ++i) {
      GLIM_ASSIGN(f[i], loss_along(model, parameters[k], at, stream, kSteps[i] * h));
    }
    const double numeric = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
    lines.push_back({"gradient of " + parameters[k].name, std::abs(numeric - along) / (std::sqrt(scale) + 1e-12), options.tolerance});
  }

  std::vector<std::string> names;
  for (const std::span<const Pass> list : {forward_passes(), joint_passes()}) {
    for (const Pass& pass : list) names.emplace_back(pass.name);
  }
  for (const std::string& name : names) {
    GLIM_ASSIGN(Model plain, make_model(spec, table, options, {name}));
    GLIM_TRY(plain.run(kKind));
    double worst = std::abs(plain.scalar(kKind, "loss") - loss) / std::max(1.0, std::abs(loss));
    for (const char* output : {"token_accuracy", "num_correct", "num_valid"})
      worst = std::max(worst, std::abs(plain.scalar(kKind, output) - model.scalar(kKind, output)));
    for (size_t k = 0; k < parameters.size(); ++k) {
      worst = std::max(worst, relative_distance(as_doubles(plain.state_bytes(gradient_name(parameters[k].name))), gradients[k]));
    }
    lines.push_back({fmt::format("without {}: loss, counts and gradients", name), worst, options.fused_tolerance});
  }
  return lines;
}

}  // namespace glim
