#include "engine/passes/rematerialise_choice.h"

#include <algorithm>
#include <string_view>

#include "engine/passes/rematerialise_search.h"

namespace glim {
namespace {

// "decoder.3.mlp" lies in the stack instance "decoder.3"; a path without a number lies in none.
std::string_view stack_instance(std::string_view path) {
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (!part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; })) return path.substr(0, end);
    begin = end + 1;
  }
  return {};
}

// Which items run again, and which buffers are kept.
struct Plan {
  std::vector<bool> recomputed, saved;
};

Plan to_plan(const RematerialisationProblem& problem, const RematerialisationSelection& selection) {
  Plan plan;
  for (uint32_t i = 0; i < problem.items.size(); ++i) plan.recomputed.push_back(selection.is_recomputed(i));
  for (uint32_t b = 0; b < problem.buffers.size(); ++b) plan.saved.push_back(selection.is_saved(b));
  return plan;
}

// Buffers that forward nodes of another instance read.
std::vector<bool> find_crossing(const Graph& graph, const BackwardRegion& backward, std::span<const ValueId> buffer_of) {
  const auto instance = [&](NodeId n) { return stack_instance(graph.text(graph.origin(n).path)); };
  std::vector<bool> crosses(graph.num_values(), false);
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    if (backward.nodes[n]) continue;
    for (const ValueId v : graph.inputs({n})) {
      if (!v.valid()) continue;
      const ValueId buffer = buffer_of[v.index];
      if (instance(graph.producer(buffer)) != instance({n})) crosses[buffer.index] = true;
    }
  }
  return crosses;
}

// Nodes of a stack whose results go on to the next instance. Running them again would make a chain through all instances below: it saves
// nothing, because the whole chain has to be there before the backward pass of the topmost instance begins.
std::vector<bool> find_boundaries(const Graph& graph, const BackwardRegion& backward, std::span<const ValueId> buffer_of) {
  std::vector<bool> boundaries(graph.num_nodes(), false);
  const std::vector<bool> crosses = find_crossing(graph, backward, buffer_of);
  for (uint32_t v = 0; v < graph.num_values(); ++v) {
    const NodeId producer = graph.producer(buffer_of[v]);
    if (crosses[buffer_of[v].index] && !stack_instance(graph.text(graph.origin(producer).path)).empty()) boundaries[producer.index] = true;
  }
  return boundaries;
}

Plan plan_full(const Graph& graph, const BackwardRegion& backward, std::span<const ValueId> buffer_of,
               const RematerialisationProblem& problem) {
  const auto instance = [&](NodeId n) { return stack_instance(graph.text(graph.origin(n).path)); };
  const std::vector<bool> crosses = find_crossing(graph, backward, buffer_of);
  Plan plan{std::vector<bool>(problem.items.size(), false), std::vector<bool>(problem.buffers.size(), false)};
  std::vector<bool> needed(problem.buffers.size());
  for (uint32_t b = 0; b < problem.buffers.size(); ++b) needed[b] = problem.buffers[b].needed;
  for (size_t i = problem.items.size(); i-- > 0;) {
    const RematerialisationProblem::Item& item = problem.items[i];
    const bool keep_all = item.pinned || instance(item.node).empty();
    for (const uint32_t b : problem.outputs_of(item)) {
      if (!needed[b]) continue;
      if (keep_all || crosses[problem.buffers[b].value.index])
        plan.saved[b] = true;
      else
        plan.recomputed[i] = true;
    }
    if (!plan.recomputed[i]) continue;
    for (const uint32_t b : problem.operands_of(item)) needed[b] = true;
  }
  return plan;
}

Plan make_plan(const Graph& graph, const PassContext& context, const RematerialisationSearch& search, const BackwardRegion& backward,
               std::span<const ValueId> buffer_of, const RematerialisationProblem& problem) {
  switch (context.rematerialise) {
    case Rematerialise::kNone: break;
    case Rematerialise::kSelective: {
      std::vector<bool> expensive;
      for (const RematerialisationProblem::Item& item : problem.items) expensive.push_back(item.expensive);
      return to_plan(problem, fewest_bytes(problem, expensive));
    }
    case Rematerialise::kFull: return plan_full(graph, backward, buffer_of, problem);
    case Rematerialise::kAuto: return to_plan(problem, least_time(problem, static_cast<double>(context.saved_bytes_budget), search));
  }
  return to_plan(problem, RematerialisationSelection(problem));
}

}  // namespace

RematerialisationChoice choose_rematerialisation(const Graph& graph, const PassContext& context, const RematerialisationSearch& search) {
  const BackwardRegion backward = find_backward_region(graph);
  const std::vector<ValueId> buffer_of = find_buffers(graph);
  std::vector<bool> boundaries(graph.num_nodes(), false);
  if (context.rematerialise == Rematerialise::kSelective || context.rematerialise == Rematerialise::kAuto)
    boundaries = find_boundaries(graph, backward, buffer_of);
  const RematerialisationProblem problem = make_rematerialisation_problem(graph, backward, buffer_of, context.cost_model, boundaries);
  const Plan plan = make_plan(graph, context, search, backward, buffer_of, problem);

  RematerialisationChoice choice{std::vector<bool>(graph.num_nodes(), false), std::vector<bool>(graph.num_values(), false), {}};
  RematerialisationReport& report = choice.report;
  for (uint32_t i = 0; i < problem.items.size(); ++i) {
    if (!plan.recomputed[i]) continue;
    choice.recomputed[problem.items[i].node.index] = true;
    report.recompute_flops += problem.items[i].flops;
    report.recompute_seconds += problem.items[i].seconds;
    ++report.num_recomputed;
  }
  for (uint32_t b = 0; b < problem.buffers.size(); ++b) {
    if (!plan.saved[b]) continue;
    choice.saved[problem.buffers[b].value.index] = true;
    report.saved_bytes += problem.buffers[b].bytes;
    ++report.num_saved;
  }
  report.within_budget =
      context.rematerialise != Rematerialise::kAuto || report.saved_bytes <= static_cast<double>(context.saved_bytes_budget);
  return choice;
}

}  // namespace glim
