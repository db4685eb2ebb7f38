#include "runtime/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/random.h"

namespace glim {

int32_t sample_token(std::span<const double> logits, const SamplingOptions& options, uint64_t draw) {
  if (options.temperature <= 0) return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < order.size()) order.resize(static_cast<size_t>(options.top_k));
  std::vector<double> weights;
  double total = 0;
  for (const int32_t token : order) {
    weights.push_back(std::exp((logits[static_cast<size_t>(token)] - logits[static_cast<size_t>(order[0])]) / options.temperature));
    total += weights.back();
  }
  double kept = 0;
  size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < options.top_p * total)) kept += weights[count++];
  double at = uniform_draw(make_stream(options.seed, "sample"), draw) * kept;
  for (size_t k = 0; k + 1 < count; ++k) {
    if (at < weights[k]) return order[k];
    at -= weights[k];
  }
  return order[count - 1];
}

Result<std::vector<int32_t>> generate(Model& model, std::vector<int32_t> prompt, int64_t num_tokens, const SamplingOptions& options,
                                      const std::function<void(int32_t)>& on_token) {
  const auto find_input = [&](std::string_view name) {
    const auto& inputs = model.compiled().inputs;
    return std::find_if(inputs.begin(), inputs.end(), [&](const ModelInput& input) { return input.name == name; });
  };
  const auto capacity = static_cast<size_t>(find_input("tokens")->type.shape.numel());
  if (prompt.empty()) return invalid_argument("the prompt is empty: generation continues at least one token");
  GLIM_CHECK(prompt.size() + static_cast<size_t>(num_tokens) <= capacity, "the model was compiled for fewer tokens");
  std::vector<int32_t> generated;
  for (int64_t k = 0; k < num_tokens; ++k) {
    const auto length = static_cast<int32_t>(prompt.size());
    GLIM_TRY(model.set_inputs({{"tokens", prompt}, {"row_lengths", {length}}, {"rows", {length - 1}}}));
    GLIM_TRY(model.run(ProgramKind::kForward));
    GLIM_ASSIGN(const HostTensor logits, model.output(ProgramKind::kForward, "row_logits"));
    std::vector<double> values(static_cast<size_t>(logits.type.shape.last()));
    for (size_t v = 0; v < values.size(); ++v) values[v] = logits.at(static_cast<int64_t>(v));
    const int32_t token = sample_token(values, options, options.first_draw + static_cast<uint64_t>(k));
    generated.push_back(token);
    prompt.push_back(token);
    if (on_token) on_token(token);
    if (std::find(options.stop.begin(), options.stop.end(), token) != options.stop.end()) break;
  }
  return generated;
}

}  // namespace glim
