#pragma once
// What training a model costs, from the compiler alone: no weights, no GPU.
#include "models/spec.h"
#include "runtime/compile.h"

namespace glim {

struct PlanOptions {
  DType real = DType::kBF16;
  int64_t tokens = 8192, segments = 1;
  std::function<bool(std::string_view parameter)> trains;
  CostModel cost_model;
  size_t saved_bytes_budget = 0;  // of the policy "auto"; 0 = half of what "none" saves
};
struct PolicyPlan {
  Rematerialise policy = Rematerialise::kNone;
  std::array<size_t, kNumArenas> arena_bytes{};
  size_t total_bytes = 0;
  size_t live_bytes_peak = 0;                         // most activations alive at once: the least that any packing could take
  double saved_bytes = 0;                             // primals kept for the backward pass
  double recompute_flops = 0, recompute_seconds = 0;  // per micro-step, by the cost model
};
struct TrainingPlan {
  int64_t num_parameters = 0, num_trained = 0;
  double forward_flops = 0, backward_flops = 0, update_flops = 0;  // per micro-step; per update
  double forward_bytes = 0, backward_bytes = 0, update_bytes = 0;  // moved
  std::vector<PolicyPlan> policies;                                // none, selective, full, auto
  double compile_seconds = 0;                                      // one set of programs: build, all passes, schedule and plan
  size_t num_nodes = 0, graph_bytes = 0;                           // of these programs
};
Result<TrainingPlan> plan_training(const ModelSpec& spec, const OpTable& table, const PlanOptions& options);

}  // namespace glim
