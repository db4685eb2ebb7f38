#include "runtime/check_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/passes/pass_list.h"
#include "runtime/check_steps.h"
#include "runtime/model.h"
#include "runtime/random.h"

namespace glim {
namespace {

constexpr ProgramKind kKind = ProgramKind::kFirst;

Result<Model> make_model(const ModelSpec& spec, const OpTable& table, const CheckOptions& options, std::vector<std::string> disabled,
                         Backend backend, DType real = DType::kF64) {
  CompileOptions compile_options;
  compile_options.real = real;
  compile_options.runtime_dims = {{"T", options.tokens}, {"G", options.segments}, {"R", 1}};
  compile_options.programs = {kKind};
  compile_options.driver.disabled = std::move(disabled);
  GLIM_ASSIGN(CompiledModel compiled, compile(spec, table, compile_options));
  GLIM_ASSIGN(Model model, Model::create(std::move(compiled), options.num_threads, backend));
  // Parameters all over their range: at their initial values, norm weights would be constant and small errors invisible.
  GLIM_TRY(model.initialise(options.seed));
  for (const ModelParameter& parameter : model.compiled().parameters) {
    if (!model.has_state(parameter.name)) continue;
    GLIM_ASSIGN(HostTensor weight, model.state(parameter.name));
    const uint64_t stream = make_stream(options.seed, "check." + parameter.name);
    // A product's results then spread as far as they would at a width of 32.
    const Shape& shape = parameter.type.shape;
    const double spread = shape.rank < 2
                              ? options.scale
                              : options.scale * std::sqrt(32.0 / static_cast<double>(std::max<int64_t>(32, shape[shape.rank - 1])));
    for_elements(model.executor().pool(), shape.numel(), [&](int64_t i) {
      weight.set(i, (parameter.init == InitKind::kConstant ? weight.at(i) : 0) + spread * normal_draw(stream, static_cast<uint64_t>(i)));
    });
    GLIM_TRY(model.set_state(parameter.name, weight.bytes));
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

Result<std::vector<double>> values_of(const Model& model, const std::string& state) {
  GLIM_ASSIGN(const HostTensor tensor, model.state(state));
  std::vector<double> values(static_cast<size_t>(tensor.type.shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = tensor.at(static_cast<int64_t>(i));
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

// Gradients, bits, and each pass: in f64, on one backend.
Status check_mathematics(const ModelSpec& spec, const OpTable& table, const CheckOptions& options, std::vector<CheckLine>& lines) {
  GLIM_ASSIGN(Model model, make_model(spec, table, options, {}, options.backend));
  GLIM_TRY(model.run(kKind));
  const std::vector<ModelParameter>& parameters = model.compiled().parameters;
  std::vector<std::vector<double>> gradients;
  for (const ModelParameter& parameter : parameters) {
    GLIM_ASSIGN(std::vector<double> gradient, values_of(model, gradient_name(parameter.name)));
    gradients.push_back(std::move(gradient));
  }
  GLIM_ASSIGN(const double loss, model.scalar(kKind, "loss"));

  GLIM_TRY(model.run(kKind));
  GLIM_ASSIGN(const double loss_again, model.scalar(kKind, "loss"));
  bool is_same = loss_again == loss;
  for (size_t k = 0; k < parameters.size(); ++k) {
    GLIM_ASSIGN(const std::vector<double> gradient, values_of(model, gradient_name(parameters[k].name)));
    is_same = is_same && gradient == gradients[k];
  }
  lines.push_back({"the same run twice: differing bits", is_same ? 0.0 : 1.0, 0});

  for (size_t k = 0; k < parameters.size(); ++k) {
    const uint64_t stream = make_stream(options.seed, "direction." + parameters[k].name);
    GLIM_ASSIGN(const std::vector<double> at, values_of(model, parameters[k].name));
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
    GLIM_ASSIGN(Model plain, make_model(spec, table, options, {name}, options.backend));
    GLIM_TRY(plain.run(kKind));
    GLIM_ASSIGN(const double plain_loss, plain.scalar(kKind, "loss"));
    double worst = std::abs(plain_loss - loss) / std::max(1.0, std::abs(loss));
    for (const char* output : {"token_accuracy", "num_correct", "num_valid"}) {
      GLIM_ASSIGN(const double theirs, plain.scalar(kKind, output));
      GLIM_ASSIGN(const double ours, model.scalar(kKind, output));
      worst = std::max(worst, std::abs(theirs - ours));
    }
    for (size_t k = 0; k < parameters.size(); ++k) {
      GLIM_ASSIGN(const std::vector<double> gradient, values_of(plain, gradient_name(parameters[k].name)));
      worst = std::max(worst, relative_distance(gradient, gradients[k]));
    }
    lines.push_back({fmt::format("without {}: loss, counts and gradients", name), worst, options.fused_tolerance});
  }
  return ok();
}

}  // namespace

Result<std::vector<CheckLine>> check_model(const ModelSpec& spec, const OpTable& table, const CheckOptions& options) {
  std::vector<CheckLine> lines;
  if (!options.steps_only) GLIM_TRY(check_mathematics(spec, table, options, lines));
  if (options.steps_only && options.backend == Backend::kCpu)
    return invalid_argument("the steps of another backend are compared with the CPU's: --steps-only needs --backend cuda");
  for (const DType real : {DType::kF32, DType::kBF16}) {
    if (options.backend == Backend::kCpu) break;
    GLIM_ASSIGN(Model expected, make_model(spec, table, options, {}, Backend::kCpu, real));
    GLIM_ASSIGN(Model found, make_model(spec, table, options, {}, options.backend, real));
    GLIM_ASSIGN(const std::vector<CheckLine> steps, check_steps(found, expected, kKind, real));
    lines.insert(lines.end(), steps.begin(), steps.end());
  }
  return lines;
}

}  // namespace glim
