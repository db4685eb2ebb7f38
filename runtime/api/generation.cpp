// Model::generate: a second compilation for one document of a bucket of tokens.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "runtime/api/model_impl.h"
#include "runtime/generator.h"

namespace glim::v0 {
namespace {
constexpr int64_t kMaxGenerationTokens = int64_t{1} << 24;
}

glim::Status ModelImpl::prepare_generation(int64_t length) {
  if (!generator_ || length != generator_length_) {
    const auto has_dim = [&](std::string_view name) {
      return std::any_of(source_.spec.runtime_dims.begin(), source_.spec.runtime_dims.end(),
                         [&](const RuntimeDim& dim) { return dim.name.text == name; });
    };
    const bool has_tokens = std::any_of(source_.spec.inputs.begin(), source_.spec.inputs.end(),
                                        [](const InputSpec& input) { return input.name.text == "tokens"; });
    if (!has_output("row_logits") || !has_tokens || !has_dim("T"))
      return invalid_argument(
          fmt::format("{}: generation needs the input 'tokens' [T], the input 'rows' [R] and the output 'row_logits'", source_.spec.file));
    CompileOptions options = compile_options();
    generator_.reset();
    generator_length_ = length;
    options.runtime_dims["T"] = generator_length_;
    options.runtime_dims["G"] = options.runtime_dims["R"] = 1;
    options.forward_outputs = {"row_logits"};
    options.programs = {ProgramKind::kForward};
    GLIM_ASSIGN(CompiledModel compiled, compile(options));
    GLIM_ASSIGN(glim::Model model, glim::Model::create(std::move(compiled), options_.threads));
    generator_ = std::make_unique<glim::Model>(std::move(model));
    generator_->set_cancellation(&cancelled);
    generator_version_ = 0;
  }
  if (generator_version_ == parameters_version_) return ok();
  for (const ModelParameter& parameter : model_->compiled().parameters)
    GLIM_TRY(generator_->set_state(parameter.name, model_->state_bytes(parameter.name)));
  generator_version_ = parameters_version_;
  return ok();
}

glim::Result<std::vector<int32_t>> ModelImpl::generate(std::span<const int32_t> prompt, int64_t num_tokens, const Sampling& sampling,
                                                       const std::function<void(int32_t)>& on_token) {
  if (prompt.empty()) return invalid_argument("the prompt is empty: generation continues at least one token");
  if (num_tokens < 0 || num_tokens > kMaxGenerationTokens || prompt.size() > static_cast<size_t>(kMaxGenerationTokens))
    return invalid_argument(fmt::format("cannot generate {} tokens: 0 to {}", num_tokens, kMaxGenerationTokens));
  if (!(sampling.temperature >= 0) || sampling.top_k < 0 || !(sampling.top_p >= 0 && sampling.top_p <= 1)) {
    return invalid_argument(fmt::format("temperature {} and top_k {} must be at least 0, top_p {} from 0 to 1", sampling.temperature,
                                        sampling.top_k, sampling.top_p));
  }
  SamplingOptions options{sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed, sampling.stop, 0};
  const auto each = [&](int32_t token) {
    if (on_token) on_token(token);
    progress("generate", static_cast<int64_t>(++options.first_draw), static_cast<size_t>(num_tokens));
  };
  std::vector<int32_t> all(prompt.begin(), prompt.end());
  while (static_cast<int64_t>(all.size() - prompt.size()) < num_tokens) {
    // A program of the next power of two, until it is full: every token costs a run over all of it.
    const auto bucket = static_cast<int64_t>(std::bit_ceil(std::max<uint64_t>(all.size() + 1, 16)));
    const auto length = static_cast<int64_t>(all.size()), left = num_tokens - (length - static_cast<int64_t>(prompt.size()));
    GLIM_TRY(prepare_generation(bucket));
    const SamplingOptions now = options;  // a copy: `each` counts on
    GLIM_ASSIGN(const std::vector<int32_t> tokens, glim::generate(*generator_, all, std::min(left, bucket - length), now, each));
    all.insert(all.end(), tokens.begin(), tokens.end());
    if (std::find(sampling.stop.begin(), sampling.stop.end(), all.back()) != sampling.stop.end()) break;
  }
  return std::vector<int32_t>(all.begin() + static_cast<int64_t>(prompt.size()), all.end());
}

}  // namespace glim::v0
