// glim plan: what training this model costs, without weights and without a GPU.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <cstdio>

#include "cli/command.h"
#include "ops/builtin_ops.h"
#include "runtime/train_config.h"
#include "runtime/training_plan.h"

namespace glim::cli {
namespace {

struct PlanArguments : ModelOptions {
  int64_t tokens = 8192, segments = 1;
  double budget_gib = 0, tflops = 700, terabytes = 4.2;
};

void print_text(const TrainingPlan& plan, const PlanArguments& arguments) {
  const auto tokens = static_cast<double>(arguments.tokens);
  std::printf("%s parameters (%s trained), %s training, %lld tokens in %lld segment(s)\n", with_commas(plan.num_parameters).c_str(),
              with_commas(plan.num_trained).c_str(), arguments.dtype.c_str(), static_cast<long long>(arguments.tokens),
              static_cast<long long>(arguments.segments));
  std::printf("compiled in %.3f s: %s nodes, %s of graph\n\n", plan.compile_seconds,
              with_commas(static_cast<int64_t>(plan.num_nodes)).c_str(), in_bytes(static_cast<double>(plan.graph_bytes)).c_str());
  std::printf("%-10s %14s %16s %14s\n", "", "FLOPs/token", "TFLOP/micro-step", "bytes moved");
  const auto row = [&](const char* name, double flops, double bytes) {
    std::printf("%-10s %14s %16.3f %14s\n", name, with_commas(static_cast<int64_t>(flops / tokens)).c_str(), flops / 1e12,
                in_bytes(bytes).c_str());
  };
  row("forward", plan.forward_flops, plan.forward_bytes);
  row("backward", plan.backward_flops, plan.backward_bytes);
  row("both", plan.forward_flops + plan.backward_flops, plan.forward_bytes + plan.backward_bytes);
  row("update", plan.update_flops, plan.update_bytes);
  std::printf("\nbytes per arena, by rematerialisation policy\n%-15s", "");
  for (const PolicyPlan& policy : plan.policies) std::printf(" %14s", std::string(to_string(policy.policy)).c_str());
  for (size_t a = 0; a < kNumArenas; ++a) {
    std::printf("\n%-15s", std::string(to_string(static_cast<Arena>(a))).c_str());
    for (const PolicyPlan& policy : plan.policies) std::printf(" %14s", in_bytes(static_cast<double>(policy.arena_bytes[a])).c_str());
  }
  const auto line = [&](const char* name, auto text_of) {
    std::printf("\n%-15s", name);
    for (const PolicyPlan& policy : plan.policies) std::printf(" %14s", text_of(policy).c_str());
  };
  line("total", [](const PolicyPlan& p) { return in_bytes(static_cast<double>(p.total_bytes)); });
  line("  alive at once", [](const PolicyPlan& p) { return in_bytes(static_cast<double>(p.live_bytes_peak)); });
  line("saved primals", [](const PolicyPlan& p) { return in_bytes(p.saved_bytes); });
  line("recomputed", [](const PolicyPlan& p) { return fmt::format("{:.2f} TFLOP", p.recompute_flops / 1e12); });
  line("  taking", [](const PolicyPlan& p) { return fmt::format("{:.1f} ms", p.recompute_seconds * 1e3); });
  std::printf("\n(on cuda, matrix products take %s more as their workspace)",
              in_bytes(static_cast<double>(bytes_beside_arenas(Backend::kCuda))).c_str());
  std::printf("\n(times by the cost model: %.0f TFLOP/s, %.1f TB/s; --tflops and --terabytes change it)\n", arguments.tflops,
              arguments.terabytes);
}

void print_json(const TrainingPlan& plan) {
  nlohmann::ordered_json report{
      {"num_parameters", plan.num_parameters},   {"num_trained", plan.num_trained},
      {"forward_flops", plan.forward_flops},     {"backward_flops", plan.backward_flops},
      {"update_flops", plan.update_flops},       {"forward_bytes", plan.forward_bytes},
      {"backward_bytes", plan.backward_bytes},   {"update_bytes", plan.update_bytes},
      {"compile_seconds", plan.compile_seconds}, {"num_nodes", plan.num_nodes},
      {"graph_bytes", plan.graph_bytes},         {"cuda_bytes_beside_arenas", bytes_beside_arenas(Backend::kCuda)}};
  for (const PolicyPlan& policy : plan.policies) {
    nlohmann::ordered_json entry{{"total_bytes", policy.total_bytes},
                                 {"live_bytes_peak", policy.live_bytes_peak},
                                 {"saved_bytes", policy.saved_bytes},
                                 {"recompute_flops", policy.recompute_flops},
                                 {"recompute_seconds", policy.recompute_seconds}};
    for (size_t a = 0; a < kNumArenas; ++a) entry["arenas"][std::string(to_string(static_cast<Arena>(a)))] = policy.arena_bytes[a];
    report["policies"][std::string(to_string(policy.policy))] = std::move(entry);
  }
  std::printf("%s\n", report.dump(1).c_str());
}

Status plan(const PlanArguments& arguments) {
  GLIM_ASSIGN(const DType dtype, real_dtype(arguments));
  GLIM_ASSIGN(const ModelSource source, open_model(arguments.model, arguments.set, ""));
  PlanOptions options;
  options.real = dtype;
  options.tokens = arguments.tokens;
  options.segments = arguments.segments;
  options.cost_model = {arguments.tflops * 1e12, arguments.terabytes * 1e12};
  options.saved_bytes_budget = static_cast<size_t>(arguments.budget_gib * 1073741824.0);
  GLIM_ASSIGN(const TrainingPlan result, plan_training(source.spec, builtin_ops(), options));
  if (arguments.json)
    print_json(result);
  else
    print_text(result, arguments);
  return ok();
}

}  // namespace

void add_plan(CLI::App& app, Body& body) {
  auto arguments = std::make_shared<PlanArguments>();
  arguments->dtype = "bf16";
  CLI::App* command = app.add_subcommand("plan", "parameters, memory, FLOPs and rematerialisation of a training step, without a GPU");
  add_model_options(*command, *arguments);
  command->add_option("--dtype", arguments->dtype, "bf16 (with f32 master weights, gradients and moments), f32 or f64")
      ->capture_default_str();
  command->add_option("--tokens", arguments->tokens, "T")->capture_default_str()->check(CLI::Range(1, 1 << 30));
  command->add_option("--segments", arguments->segments, "G")->capture_default_str()->check(CLI::Range(1, 1 << 30));
  command->add_option("--budget", arguments->budget_gib, "GiB of saved primals for the policy auto (default: half of what none saves)")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--tflops", arguments->tflops, "cost model: TFLOP/s")->capture_default_str()->check(CLI::PositiveNumber);
  command->add_option("--terabytes", arguments->terabytes, "cost model: TB/s of memory")->capture_default_str()->check(CLI::PositiveNumber);
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer("Example: glim plan muse_glimmer_30b --tokens 8192 --budget 40");
  command->callback([arguments, &body] { body = [arguments] { return plan(*arguments); }; });
}

}  // namespace glim::cli
