// glim eval: loss and token accuracy of a model on text, JSON Lines or packed files.
#include <nlohmann/json.hpp>

#include <cstdio>

#include "cli/command.h"
#include "ops/builtin_ops.h"
#include "runtime/evaluate.h"
#include "runtime/weights.h"

namespace glim::cli {
namespace {

struct EvalOptions : ModelOptions {
  std::vector<std::string> files, text, ignored_keys;
  int64_t tokens = 512, max_rows = 0;
};

Status run(const EvalOptions& options) {
  GLIM_TRY(check_backend(options));
  GLIM_ASSIGN(const DType dtype, real_dtype(options));
  if (options.files.empty() && options.text.empty()) return invalid_argument("--files or --text must name what to evaluate on");
  GLIM_ASSIGN(const ModelSource source, open_model(options.model, options.set, options.weights));
  if (!source.checkpoint) return invalid_argument("there are no weights: name a folder that holds some, or give --weights");
  DataConfig config;
  config.files = options.files;
  config.text = options.text;
  config.ignored_keys = options.ignored_keys;
  config.validation_fraction = 0;
  GLIM_ASSIGN(const Vocabulary vocabulary, vocabulary_of(source.spec));
  GLIM_ASSIGN(const TrainingData data, TrainingData::load(config, {.tokens = options.tokens}, vocabulary));
  CompileOptions compile_options;
  compile_options.real = dtype;
  compile_options.runtime_dims = {{"T", options.tokens}, {"G", data.max_segments()}};
  compile_options.optional_inputs = {"denominator"};
  GLIM_ASSIGN(CompiledModel compiled, compile(source.spec, builtin_ops(), compile_options));
  GLIM_ASSIGN(Model model, Model::create(std::move(compiled), options.threads));
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
  CLI::App* command = app.add_subcommand("eval", "loss and token accuracy on text, JSON Lines or packed files");
  add_run_options(*command, *options);
  command->add_option("--files", options->files, ".txt, .jsonl and .tokens files, or folders of them")->type_name("PATH");
  command->add_option("--text", options->text, "text files whatever their extension, or folders of .txt files")->type_name("PATH");
  command->add_option("--ignore-key", options->ignored_keys, "a key of JSONL documents that is passed over")->type_name("KEY");
  command->add_option("--tokens", options->tokens, "tokens per row")->capture_default_str()->check(CLI::Range(2, 1 << 30));
  command->add_option("--max-rows", options->max_rows, "look at this many rows only")->check(CLI::NonNegativeNumber);
  command->add_flag("--json", options->json, "print one JSON object");
  command->footer("Example: glim eval trained/ --text held_out.txt");
  command->callback([options, &body] { body = [options] { return run(*options); }; });
}

}  // namespace glim::cli
