// glim eval: loss and token accuracy of a model over bytes on text files.
#include <nlohmann/json.hpp>

#include <cstdio>

#include "cli/command.h"
#include "ops/builtin_ops.h"
#include "runtime/evaluate.h"
#include "runtime/weights.h"

namespace glim::cli {
namespace {

struct EvalOptions : ModelOptions {
  std::vector<std::string> text;
  int64_t tokens = 512, max_rows = 0;
};

Status run(const EvalOptions& options) {
  GLIM_ASSIGN(const Backend backend, chosen_backend(options.backend));
  GLIM_ASSIGN(const DType dtype, real_dtype(options));
  GLIM_ASSIGN(const ModelSource source, open_model(options.model, options.set, options.weights));
  if (!source.checkpoint) return invalid_argument("there are no weights: name a folder that holds some, or give --weights");
  GLIM_ASSIGN(const TextData data, TextData::load(options.text, {options.tokens, 0, 1, 0}));
  CompileOptions compile_options;
  compile_options.real = dtype;
  compile_options.runtime_dims = {{"T", options.tokens}, {"G", data.max_segments()}};
  compile_options.optional_inputs = {"denominator"};
  GLIM_ASSIGN(CompiledModel compiled, compile(source.spec, builtin_ops(), compile_options));
  GLIM_ASSIGN(Model model, Model::create(std::move(compiled), options.threads, backend));
  GLIM_TRY(load_weights(model, *source.checkpoint, source.spec.hf.ignore_tensors));
  const int64_t rows = options.max_rows > 0 ? std::min(options.max_rows, data.num_rows()) : data.num_rows();
  GLIM_ASSIGN(const Evaluation result, evaluate(model, rows, [&](int64_t row) { return data.batch(row); }));
  if (options.json) {
    const nlohmann::ordered_json report{{"loss", result.loss},
                                        {"token_accuracy", result.token_accuracy},
                                        {"num_correct", result.num_correct},
                                        {"num_valid", result.num_valid},
                                        {"rows", rows}};
    std::printf("%s\n", report.dump().c_str());
  } else {
    std::printf("loss %.6f  token accuracy %.2f %%  (%s of %s tokens)\n", result.loss, 100 * result.token_accuracy,
                with_commas(result.num_correct).c_str(), with_commas(result.num_valid).c_str());
  }
  return ok();
}

}  // namespace

void add_eval(CLI::App& app, Body& body) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command = app.add_subcommand("eval", "loss and token accuracy on text");
  add_run_options(*command, *options);
  command->add_option("--text", options->text, "files, or folders of .txt files")->required()->type_name("PATH");
  command->add_option("--tokens", options->tokens, "tokens per row")->capture_default_str()->check(CLI::Range(2, 1 << 30));
  command->add_option("--max-rows", options->max_rows, "look at this many rows only")->check(CLI::NonNegativeNumber);
  command->add_flag("--json", options->json, "print one JSON object");
  command->footer("Example: glim eval trained/ --text held_out.txt");
  command->callback([options, &body] { body = [options] { return run(*options); }; });
}

}  // namespace glim::cli
