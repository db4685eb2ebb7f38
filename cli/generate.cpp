// glim generate: continues a prompt.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <cstdio>

#include "cli/command.h"
#include "engine/dtype.h"
#include "ops/builtin_ops.h"
#include "runtime/convert.h"
#include "runtime/generator.h"
#include "runtime/weights.h"

namespace glim::cli {
namespace {

struct GenerateOptions : ModelOptions {
  std::string prompt, inputs, outputs;
  std::vector<int32_t> ids;
  int64_t num_tokens = 64;
  SamplingOptions sampling;
};

// Token ids from --ids, from gen.input_ids or input_ids of --inputs (one row), or the bytes of --prompt.
Result<std::vector<int32_t>> read_prompt(const GenerateOptions& options, const ModelSpec& spec) {
  const int given = (options.ids.empty() ? 0 : 1) + (options.inputs.empty() ? 0 : 1) + (options.prompt.empty() ? 0 : 1);
  if (given != 1) return invalid_argument("give exactly one of --prompt, --ids and --inputs");
  if (!options.ids.empty()) return options.ids;
  if (!options.prompt.empty()) {
    if (spec.vocabulary != "bytes")
      return invalid_argument(fmt::format("{} is no model over bytes: give token ids with --ids or --inputs", spec.file));
    std::vector<int32_t> ids;
    for (const char c : options.prompt) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }
  GLIM_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(options.inputs));
  for (const char* name : {"gen.input_ids", "in.input_ids", "input_ids"}) {
    const FileTensor* tensor = file.find(name);
    if (tensor == nullptr) continue;
    if (tensor->spec.shape.size() != 2 || tensor->spec.shape[0] != 1 || is_float(tensor->spec.dtype)) {
      return invalid_file(fmt::format("'{}' must hold one row of token ids, not {}", name, describe(tensor->spec)), {options.inputs, 0, 0});
    }
    std::vector<int32_t> ids(static_cast<size_t>(tensor->spec.shape[1]));
    GLIM_TRY(convert_elements(tensor->spec.dtype, tensor->data, FileDType::kI32, std::as_writable_bytes(std::span(ids)), name));
    return ids;
  }
  return invalid_file("there is no input_ids", {options.inputs, 0, 0});
}

Status run(const GenerateOptions& options) {
  GLIM_ASSIGN(const Backend backend, chosen_backend(options.backend));
  GLIM_ASSIGN(const DType dtype, real_dtype(options));
  GLIM_ASSIGN(const ModelSource source, open_model(options.model, options.set, options.weights));
  if (!source.checkpoint) return invalid_argument("there are no weights: name a folder that holds some, or give --weights");
  GLIM_ASSIGN(const std::vector<int32_t> prompt, read_prompt(options, source.spec));
  CompileOptions compile_options;
  compile_options.real = dtype;
  compile_options.runtime_dims = {{"T", static_cast<int64_t>(prompt.size()) + options.num_tokens}, {"G", 1}, {"R", 1}};
  compile_options.outputs = {"row_logits"};
  GLIM_ASSIGN(CompiledModel compiled, compile(source.spec, builtin_ops(), compile_options));
  GLIM_ASSIGN(Model model, Model::create(std::move(compiled), options.threads, backend));
  GLIM_TRY(load_weights(model, *source.checkpoint, source.spec.hf.ignore_tensors));

  const bool as_text = source.spec.vocabulary == "bytes" && !options.json;
  if (as_text) std::printf("%s", options.prompt.c_str());
  const auto on_token = [&](int32_t token) {
    if (options.json) return;
    if (as_text)
      std::printf("%c", token >= 32 || token == '\n' || token == '\t' ? token : ' ');
    else
      std::printf("%d ", token);
    std::fflush(stdout);
  };
  GLIM_ASSIGN(const std::vector<int32_t> tokens, generate(model, prompt, options.num_tokens, options.sampling, on_token));
  if (options.json) std::printf("%s", nlohmann::json{{"tokens", tokens}}.dump().c_str());
  std::printf("\n");
  if (options.outputs.empty()) return ok();
  const std::vector<int64_t> wide(tokens.begin(), tokens.end());
  const FileTensor tensor{{"generated", FileDType::kI64, {1, static_cast<int64_t>(wide.size())}}, std::as_bytes(std::span(wide))};
  return write_safetensors(options.outputs, {&tensor, 1}, std::nullopt);
}

}  // namespace

void add_generate(CLI::App& app, Body& body) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "continue a prompt");
  add_run_options(*command, *options);
  command->add_option("--prompt", options->prompt, "text, for a model over bytes");
  command->add_option("--ids", options->ids, "token ids, separated by commas")->delimiter(',');
  command->add_option("--inputs", options->inputs, "a .safetensors file with input_ids [1, tokens]")->type_name("FILE");
  command->add_option("--outputs", options->outputs, "write the new tokens as `generated` [1, tokens]")->type_name("FILE");
  command->add_option("-n,--num-tokens", options->num_tokens, "tokens to generate")->capture_default_str()->check(CLI::Range(1, 1 << 24));
  command->add_option("--temperature", options->sampling.temperature, "0 = greedy")->capture_default_str()->check(CLI::NonNegativeNumber);
  command->add_option("--top-k", options->sampling.top_k, "keep the k most likely tokens; 0 = all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--top-p", options->sampling.top_p, "keep the most likely tokens up to this probability")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("--seed", options->sampling.seed, "of the sampling")->capture_default_str();
  command->add_option("--stop", options->sampling.stop, "token ids that end generation")->delimiter(',');
  command->add_flag("--json", options->json, "print the new tokens as one JSON object");
  command->footer("Example: glim generate trained/ --prompt \"The \" -n 200 --temperature 0.8 --top-p 0.95 --seed 7");
  command->callback([options, &body] { body = [options] { return run(*options); }; });
}

}  // namespace glim::cli
