#include "runtime/training_plan.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "engine/analysis/backward_region.h"
#include "engine/passes/rematerialise.h"
#include "runtime/arenas.h"

namespace glim {
namespace {

CompileOptions compile_options(const PlanOptions& options, Rematerialise policy, size_t budget) {
  CompileOptions result;
  result.real = options.real;
  result.runtime_dims = {{"T", options.tokens}, {"G", options.segments}, {"R", 1}};
  result.optional_inputs = {"denominator"};
  result.programs = {ProgramKind::kFirst, ProgramKind::kNext, ProgramKind::kUpdate};
  result.trains = options.trains;
  result.passes = {options.cost_model, policy, budget};
  return result;
}

// The joint graph just before rematerialisation.
Result<Graph> joint_graph(const ModelSpec& spec, const OpTable& table, const PlanOptions& options) {
  CompileOptions before = compile_options(options, Rematerialise::kNone, 0);
  before.driver.stop_after = "order";
  BuiltModel facts{Graph(table), {}, {}, {}};
  return lower(spec, table, before, ProgramKind::kFirst, facts);
}

void add_costs(const Graph& graph, bool is_update, TrainingPlan& plan) {
  const BackwardRegion backward = find_backward_region(graph);
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    const Cost cost = graph.cost({n});
    const double bytes = cost.bytes_read + cost.bytes_written;
    (is_update ? plan.update_flops : backward.nodes[n] ? plan.backward_flops : plan.forward_flops) += cost.flops;
    (is_update ? plan.update_bytes : backward.nodes[n] ? plan.backward_bytes : plan.forward_bytes) += bytes;
  }
}

}  // namespace

Result<TrainingPlan> plan_training(const ModelSpec& spec, const OpTable& table, const PlanOptions& options) {
  TrainingPlan plan;
  GLIM_ASSIGN(const Graph joint, joint_graph(spec, table, options));
  PassContext context{options.cost_model, Rematerialise::kNone, options.saved_bytes_budget};
  const double saved_by_none = describe_saved(joint, context).saved_bytes;
  if (context.saved_bytes_budget == 0) context.saved_bytes_budget = static_cast<size_t>(saved_by_none / 2);
  for (const Rematerialise policy : {Rematerialise::kNone, Rematerialise::kSelective, Rematerialise::kFull, Rematerialise::kAuto}) {
    const auto start = std::chrono::steady_clock::now();
    GLIM_ASSIGN(const CompiledModel model, compile(spec, table, compile_options(options, policy, context.saved_bytes_budget)));
    if (policy == Rematerialise::kNone) {
      plan.compile_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      plan.num_parameters = num_elements(model.parameters);
      for (const ModelParameter& parameter : model.parameters) {
        if (!options.trains || options.trains(parameter.name)) plan.num_trained += parameter.type.shape.numel();
      }
      for (const auto& program : model.programs) {
        plan.num_nodes += program->graph.num_nodes();
        plan.graph_bytes += program->graph.memory_bytes();
      }
      add_costs(model.find(ProgramKind::kFirst)->graph, false, plan);
      add_costs(model.find(ProgramKind::kUpdate)->graph, true, plan);
    }
    context.rematerialise = policy;
    const RematerialisationReport report = describe_saved(joint, context);
    PolicyPlan each{policy, {}, 0, 0, report.saved_bytes, report.recompute_flops, report.recompute_seconds};
    for (const auto& program : model.programs) each.live_bytes_peak = std::max(each.live_bytes_peak, program->plan.live_bytes_peak);
    each.arena_bytes = model.arena_bytes();
    each.total_bytes = std::accumulate(each.arena_bytes.begin(), each.arena_bytes.end(), size_t{0});
    plan.policies.push_back(each);
  }
  return plan;
}

}  // namespace glim
