// glim run: one forward (and backward) pass over a batch of tensors.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <cstdio>
#include <cstring>
#include <set>

#include "cli/command.h"
#include "ops/builtin_ops.h"
#include "runtime/hf_batch.h"
#include "runtime/weights.h"

namespace glim::cli {
namespace {

struct RunOptions : ModelOptions {
  std::string inputs, outputs;
  bool gradients = false, hidden = false, no_logits = false;
};

// Tensors of the output file, in the order in which they were made.
class OutputFile {
 public:
  void add(const std::string& name, const HostTensor& tensor, std::vector<int64_t> shape) {
    specs_.push_back({name, file_dtype(tensor.type.dtype), std::move(shape)});
    bytes_.push_back(tensor.bytes);
  }
  Status write(const std::string& path) const {
    std::vector<FileTensor> tensors;
    for (size_t k = 0; k < specs_.size(); ++k) tensors.push_back({specs_[k], bytes_[k]});
    return write_safetensors(path, tensors, std::nullopt);
  }

 private:
  std::vector<TensorSpec> specs_;
  std::vector<std::vector<std::byte>> bytes_;
};

std::vector<int64_t> dims_of(const Shape& shape) { return {shape.dims.begin(), shape.dims.begin() + shape.rank}; }

Status run(const RunOptions& options) {
  GLIM_ASSIGN(const Backend backend, chosen_backend(options.backend));
  GLIM_ASSIGN(const DType dtype, real_dtype(options));
  GLIM_ASSIGN(ModelSource source, open_model(options.model, options.set, options.weights));
  if (!source.checkpoint) return invalid_argument("there are no weights: name a folder that holds some, or give --weights");
  GLIM_ASSIGN(const SafetensorsFile inputs, SafetensorsFile::open(options.inputs));
  GLIM_ASSIGN(HfBatch batch, read_hf_batch(inputs));
  if (options.gradients && !batch.has_labels) return invalid_argument("--grad needs labels among the inputs");

  CompileOptions compile_options;
  compile_options.real = dtype;
  compile_options.runtime_dims = {{"T", batch.num_rows * batch.row_length}, {"G", batch.num_segments}};
  if (batch.has_labels) compile_options.outputs = {"loss", "token_accuracy", "num_correct", "num_valid"};
  if (!options.no_logits) compile_options.outputs.emplace_back("logits");
  if (options.hidden) compile_options.outputs.emplace_back("hidden");
  if (compile_options.outputs.empty()) return invalid_argument("nothing to compute: there are no labels, and --no-logits was given");
  const ProgramKind kind = options.gradients ? ProgramKind::kFirst : ProgramKind::kForward;
  compile_options.programs = {kind};
  GLIM_ASSIGN(CompiledModel compiled, compile(source.spec, builtin_ops(), compile_options));
  GLIM_ASSIGN(Model model, Model::create(std::move(compiled), options.threads, backend));
  GLIM_TRY(load_weights(model, *source.checkpoint, source.spec.hf.ignore_tensors));
  GLIM_TRY(model.set_inputs(std::move(batch.values)));
  GLIM_TRY(model.run(kind));

  OutputFile file;
  nlohmann::ordered_json report;
  for (const NamedValue& output : model.compiled().find(kind)->graph.outputs()) {
    GLIM_ASSIGN(const HostTensor tensor, model.output(kind, output.name));
    std::vector<int64_t> shape = dims_of(tensor.type.shape);
    if (shape == std::vector<int64_t>{1}) {
      shape.clear();
      report[output.name] = tensor.at(0);
      if (!is_float(tensor.type.dtype)) report[output.name] = static_cast<int64_t>(tensor.at(0));
    } else {
      shape[0] = batch.row_length;  // [T, ...] -> [B, S, ...]
      shape.insert(shape.begin(), batch.num_rows);
    }
    file.add(output.name, tensor, shape);
  }
  if (options.gradients) {
    for (const ModelParameter& parameter : model.compiled().parameters) {
      GLIM_ASSIGN(const HostTensor gradient, model.state(gradient_name(parameter.name)));
      file.add("grad." + parameter.hf_name, gradient, dims_of(gradient.type.shape));
    }
  }
  GLIM_TRY(file.write(options.outputs));
  if (options.json) {
    std::printf("%s\n", report.dump().c_str());
  } else {
    for (const auto& [name, value] : report.items()) std::printf("%-15s %s\n", name.c_str(), value.dump().c_str());
  }
  return ok();
}

}  // namespace

void add_run(CLI::App& app, Body& body) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "run a model over a batch of tensors, with gradients if asked for");
  add_run_options(*command, *options);
  command->add_option("--inputs", options->inputs, "input_ids, labels, attention_mask, position_ids as [rows, tokens]")
      ->required()
      ->type_name("FILE");
  command->add_option("--outputs", options->outputs, "logits, loss, token_accuracy, num_correct, num_valid, ...")
      ->required()
      ->type_name("FILE");
  command->add_flag("--grad", options->gradients, "also write grad.NAME, the gradient of the loss, for every parameter");
  command->add_flag("--hidden", options->hidden, "also write hidden.LAYER, the residual stream after each layer");
  command->add_flag("--no-logits", options->no_logits, "do not compute logits: the loss then never holds more than a chunk of them");
  command->add_flag("--json", options->json, "print the scalars as one JSON object");
  command->footer("Example: glim run checkpoint/ --inputs batch.safetensors --outputs out.safetensors --grad --dtype f64");
  command->callback([options, &body] { body = [options] { return run(*options); }; });
}

}  // namespace glim::cli
