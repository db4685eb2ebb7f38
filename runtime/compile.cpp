#include "runtime/compile.h"

#include <algorithm>

#include "engine/passes/pass_list.h"

namespace glim {
namespace {

constexpr std::string_view kNames[] = {"forward", "first", "next", "update"};

bool stops_in(std::span<const Pass> passes, const PassOptions& options) {
  return std::any_of(passes.begin(), passes.end(), [&](const Pass& pass) { return pass.name == options.stop_after; });
}

std::vector<TrainedParameter> trained(const BuiltModel& model, const CompileOptions& options) {
  std::vector<TrainedParameter> parameters;
  for (const ModelParameter& parameter : model.parameters) {
    if (!options.trains || options.trains(parameter.name)) parameters.push_back({parameter.name, parameter.type});
  }
  return parameters;
}

}  // namespace

std::string_view to_string(ProgramKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::optional<ProgramKind> parse_program_kind(std::string_view text) {
  for (size_t k = 0; k < std::size(kNames); ++k) {
    if (kNames[k] == text) return static_cast<ProgramKind>(k);
  }
  return std::nullopt;
}

const Program* CompiledModel::find(ProgramKind kind) const {
  for (const auto& program : programs) {
    if (program->name == to_string(kind)) return program.get();
  }
  return nullptr;
}

std::array<size_t, kNumArenas> CompiledModel::arena_bytes() const {
  std::vector<const MemoryPlan*> plans;
  for (const auto& program : programs) plans.push_back(&program->plan);
  return largest(plans);
}

Result<Graph> lower(const ModelSpec& spec, const OpTable& table, const CompileOptions& options, ProgramKind kind, BuiltModel& facts) {
  PassOptions driver = options.driver;
  const std::string stop_after = driver.stop_after;
  if (stop_after == "build" || stop_after == "autodiff") driver.stop_after.clear();  // stages that are no passes
  GLIM_TRY(check_pass_names(driver));
  BuildOptions build_options{options.real, {}, options.outputs, {}};
  for (const InputSpec& input : spec.inputs) {
    const bool wanted =
        std::find(options.optional_inputs.begin(), options.optional_inputs.end(), input.name.text) != options.optional_inputs.end();
    if (input.optional && wanted) build_options.optional_inputs.push_back(input.name.text);
  }
  for (const RuntimeDim& dim : spec.runtime_dims) {
    const auto value = options.runtime_dims.find(dim.name.text);
    if (value != options.runtime_dims.end()) build_options.runtime_dims.insert(*value);
  }
  if (kind == ProgramKind::kForward && !options.forward_outputs.empty()) build_options.outputs = options.forward_outputs;
  if (build_options.outputs.empty()) build_options.outputs.assign(std::begin(kTrainingOutputs), std::end(kTrainingOutputs));
  GLIM_ASSIGN(facts, build(spec, table, build_options));
  Graph graph = std::move(facts.graph);
  if (stop_after == "build") return graph;
  if (kind == ProgramKind::kUpdate) {
    const std::vector<TrainedParameter> parameters = trained(facts, options);
    if (parameters.empty()) return invalid_argument("the model has no parameter to train");
    graph = make_update_program(table, parameters, options.adamw);
  } else {
    GLIM_ASSIGN(graph, run_passes(std::move(graph), forward_passes(), options.passes, driver));
    if (stops_in(forward_passes(), driver)) return graph;
    if (kind != ProgramKind::kForward) GLIM_TRY(append_backward(graph, {"loss", options.trains, kind == ProgramKind::kNext}));
  }
  if (stop_after == "autodiff") return graph;
  return run_passes(std::move(graph), joint_passes(), options.passes, driver);
}

Result<CompiledModel> compile(const ModelSpec& spec, const OpTable& table, const CompileOptions& options) {
  CompiledModel model;
  CompileOptions each = options;
  each.driver.reports = &model.pass_reports;
  std::vector<const Graph*> graphs;
  for (const ProgramKind kind : options.programs) {
    BuiltModel facts{Graph(table), {}, {}, {}};
    GLIM_ASSIGN(Graph graph, lower(spec, table, each, kind, facts));
    model.programs.push_back(std::make_unique<Program>(Program{std::string(to_string(kind)), std::move(graph), {}, {}}));
    graphs.push_back(&model.programs.back()->graph);
    if (!model.parameters.empty()) continue;
    model.inputs = std::move(facts.inputs);
    model.parameters = std::move(facts.parameters);
    model.dims = std::move(facts.dims);
  }
  model.layout = make_leaf_layout(graphs);
  for (const auto& program : model.programs) {
    program->schedule = make_schedule(program->graph);
    program->plan = plan_memory(program->graph, program->schedule, model.layout);
  }
  return model;
}

}  // namespace glim
