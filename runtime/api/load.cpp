// Model::load: options and source to a compiled model with parameters.
#include <fmt/format.h>

#include <algorithm>

#include "engine/suggest.h"
#include "ops/builtin_ops.h"
#include "runtime/api/model_impl.h"
#include "runtime/weights.h"

namespace glim::v0 {
namespace {

glim::Status check_options(const LoadOptions& options) {
  if (!is_float(to_engine(options.dtype)))
    return invalid_argument(fmt::format("dtype is f32, f64 or bf16, not {}", to_string(options.dtype)));
  if (options.tokens < 1 || options.segments < 1)
    return invalid_argument(fmt::format("tokens and segments must be at least 1, not {} and {}", options.tokens, options.segments));
  if (options.threads < 0) return invalid_argument(fmt::format("threads must be at least 0, not {}", options.threads));
  return ok();
}

glim::Status check_runtime_dims(const LoadOptions& options, const ModelSpec& spec) {
  std::vector<std::string> known;
  for (const RuntimeDim& dim : spec.runtime_dims) {
    if (dim.name.text != "T" && dim.name.text != "G") known.push_back(dim.name.text);
  }
  for (const auto& [name, extent] : options.runtime_dims) {
    if (name == "T" || name == "G")
      return invalid_argument(fmt::format("runtime dim '{}' is set with LoadOptions::{}", name, name == "T" ? "tokens" : "segments"));
    if (std::find(known.begin(), known.end(), name) == known.end())
      return invalid_argument(fmt::format("{} has no runtime dim '{}'{}", spec.file, name, did_you_mean(name, known)));
    if (extent < 0) return invalid_argument(fmt::format("runtime dim '{}' must be at least 0, not {}", name, extent));
  }
  return ok();
}

}  // namespace

bool ModelImpl::has_output(std::string_view name) const {
  return std::any_of(source_.spec.outputs.begin(), source_.spec.outputs.end(),
                     [&](const OutputSpec& output) { return output.name.text == name && output.layers.empty(); });
}

CompileOptions ModelImpl::compile_options() const {
  CompileOptions compile;
  compile.real = to_engine(options_.dtype);
  compile.runtime_dims = options_.runtime_dims;
  compile.runtime_dims.emplace("R", 1);
  compile.runtime_dims["T"] = options_.tokens;
  compile.runtime_dims["G"] = options_.segments;
  compile.optional_inputs = {"denominator"};
  if (options_.trainable) compile.programs = {ProgramKind::kForward, ProgramKind::kFirst, ProgramKind::kNext, ProgramKind::kUpdate};
  compile.trains = options_.trains;
  const AdamW& adamw = options_.adamw;
  compile.adamw = {adamw.beta1, adamw.beta2, adamw.eps, adamw.weight_decay, adamw.max_norm, adamw.master_weights};
  compile.passes.rematerialise = static_cast<glim::Rematerialise>(options_.rematerialise);
  // Forward also gives what was asked for; the training programs do not, so that their head stays lowered.
  for (const std::string_view name : kTrainingOutputs) {
    if (has_output(name)) compile.outputs.emplace_back(name);
  }
  compile.forward_outputs = compile.outputs;
  for (const std::string& name : options_.outputs) {
    if (std::find(compile.forward_outputs.begin(), compile.forward_outputs.end(), name) == compile.forward_outputs.end())
      compile.forward_outputs.push_back(name);
  }
  return compile;
}

glim::Result<CompiledModel> ModelImpl::compile(const CompileOptions& options) {
  op_failure_.reset();
  glim::Result<CompiledModel> compiled = glim::compile(source_.spec, table_, options);
  if (op_failure_) return *op_failure_;  // the cause, if both failed
  return compiled;
}

glim::Result<std::unique_ptr<ModelImpl>> ModelImpl::create(const LoadOptions& options,
                                                           const std::function<glim::Result<ModelSource>()>& open_source) {
  auto impl = std::make_unique<ModelImpl>();
  impl->options_ = options;
  GLIM_TRY(check_options(options));
  GLIM_ASSIGN(impl->backend_, parse_backend(options.backend));
  GLIM_TRY(check_usable(impl->backend_));
  impl->table_ = builtin_ops();
  GLIM_TRY(register_ops(options.ops, impl->table_, impl->registered_, impl->op_failure_));
  GLIM_ASSIGN(impl->source_, open_source());
  const ModelSpec& spec = impl->source_.spec;
  impl->progress("load", 1, 3);
  GLIM_TRY(check_runtime_dims(options, spec));
  const CompileOptions compile_options = impl->compile_options();
  if (options.trainable && compile_options.outputs.size() < std::size(kTrainingOutputs)) {
    return invalid_argument(fmt::format("{}: training needs the outputs {}; without them, load with trainable = false", spec.file,
                                        fmt::join(kTrainingOutputs, ", ")));
  }
  if (compile_options.forward_outputs.empty())
    return invalid_argument(fmt::format("{}: LoadOptions::outputs must say what shall be computed", spec.file));
  GLIM_ASSIGN(CompiledModel compiled, impl->compile(compile_options));
  GLIM_ASSIGN(glim::Model model, glim::Model::create(std::move(compiled), options.threads, impl->backend_));
  impl->model_ = std::make_unique<glim::Model>(std::move(model));
  impl->model_->set_cancellation(&impl->cancelled);
  impl->progress("load", 2, 3);
  if (impl->source_.checkpoint) {
    GLIM_TRY(glim::load_weights(*impl->model_, *impl->source_.checkpoint, spec.hf.ignore_tensors));
    impl->log(LogLevel::kInfo, fmt::format("weights read from {}", impl->source_.checkpoint->path()));
    impl->source_.checkpoint.reset();  // unmaps the files
  } else {
    GLIM_TRY(impl->model_->initialise(options.seed));
  }
  size_t bytes = 0;
  for (const size_t arena : impl->model_->compiled().arena_bytes()) bytes += arena;
  impl->log(LogLevel::kInfo, fmt::format("{}: {} parameters, {}, {} tokens in up to {} segments, {} bytes, {} threads", spec.file,
                                         num_elements(impl->model_->compiled().parameters), to_string(options.dtype), options.tokens,
                                         options.segments, bytes, impl->model_->executor().pool().num_threads()));
  impl->progress("load", 3, 3);
  return impl;
}

void ModelImpl::log(LogLevel level, const std::string& line) const {
  if (options_.log) options_.log(level, line);
}

void ModelImpl::progress(std::string_view stage, int64_t done, size_t total) const {
  if (options_.progress) options_.progress({stage, done, static_cast<int64_t>(total)});
}

std::vector<InputInfo> ModelImpl::inputs() const {
  std::vector<InputInfo> infos;
  for (const ModelInput& input : model_->compiled().inputs) {
    if (input.name != "denominator") infos.push_back({input.name, to_public(input.type), input.derived_from});
  }
  return infos;
}

std::vector<OutputInfo> ModelImpl::outputs() const {
  std::vector<OutputInfo> infos;
  const Graph& graph = model_->compiled().find(ProgramKind::kForward)->graph;
  for (const NamedValue& output : graph.outputs()) infos.push_back({output.name, to_public(graph.type(output.value))});
  return infos;
}

std::vector<ParameterInfo> ModelImpl::parameters() const {
  std::vector<ParameterInfo> infos;
  for (const ModelParameter& parameter : model_->compiled().parameters) {
    infos.push_back({parameter.name, parameter.hf_name, to_public(parameter.type),
                     options_.trainable && (!options_.trains || options_.trains(parameter.name))});
  }
  return infos;
}

}  // namespace glim::v0
