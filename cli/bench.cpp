// glim bench: how fast a training step of a model runs here, and where its time goes.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include "cli/command.h"
#include "ops/builtin_ops.h"
#include "runtime/model.h"
#include "runtime/random.h"
#include "runtime/trainer.h"

namespace glim::cli {
namespace {

struct BenchOptions : ModelOptions {
  int64_t tokens = 512, steps = 10;
};

struct OpTime {
  double seconds = 0, flops = 0;
  int64_t calls = 0;
};

Status set_random_inputs(Model& model, int64_t tokens) {
  int64_t vocabulary = 0;
  for (const ModelInput& input : model.compiled().inputs) {
    if (input.name == "tokens" && input.range) vocabulary = input.range->second + 1;
  }
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < tokens; ++i)
    ids.push_back(static_cast<int32_t>(uniform_draw(make_stream(1, "bench"), static_cast<uint64_t>(i)) * static_cast<double>(vocabulary)));
  GLIM_TRY(model.set_inputs({{"tokens", ids}, {"labels", ids}, {"row_lengths", {static_cast<int32_t>(tokens)}}}));
  GLIM_TRY(model.set_scalar(kLearningRateName, 1e-3));
  return model.set_scalar("denominator", static_cast<double>(tokens - 1));
}

// Medians of whole steps are measured without the profile; the table of ops with it.
Status bench(const BenchOptions& options) {
  GLIM_ASSIGN(const Backend backend, chosen_backend(options.backend));
  GLIM_ASSIGN(const DType dtype, real_dtype(options));
  GLIM_ASSIGN(const ModelSource source, open_model(options.model, options.set, ""));
  CompileOptions compile_options;
  compile_options.real = dtype;
  compile_options.runtime_dims = {{"T", options.tokens}, {"G", 1}};
  compile_options.optional_inputs = {"denominator"};
  compile_options.programs = {ProgramKind::kFirst, ProgramKind::kUpdate};
  GLIM_ASSIGN(CompiledModel compiled, compile(source.spec, builtin_ops(), compile_options));
  GLIM_ASSIGN(Model model, Model::create(std::move(compiled), options.threads, backend));
  GLIM_TRY(model.initialise(1));
  GLIM_TRY(set_random_inputs(model, options.tokens));
  double flops = 0;
  for (const auto& program : model.compiled().programs) flops += count_flops(program->graph);

  const auto step = [&]() -> Status {
    GLIM_TRY(model.run(ProgramKind::kFirst));
    return model.run(ProgramKind::kUpdate);
  };
  GLIM_TRY(step());
  std::vector<double> seconds;
  for (int64_t k = 0; k < options.steps; ++k) {
    const auto start = std::chrono::steady_clock::now();
    GLIM_TRY(step());
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];

  std::map<std::string, OpTime> ops;
  for (const ProgramKind kind : {ProgramKind::kFirst, ProgramKind::kUpdate}) {
    const Executable& executable = *model.executable(kind);
    std::vector<double> profile(executable.steps().size(), 0.0);
    model.executor().set_profile(&profile);
    GLIM_TRY(model.run(kind));
    model.executor().set_profile(nullptr);
    for (size_t k = 0; k < profile.size(); ++k) {
      const BoundStep& bound = executable.steps()[k];
      OpTime& time = ops[bound.def != nullptr ? std::string(bound.def->name) : "(copy)"];
      time.seconds += profile[k];
      time.flops += bound.def != nullptr ? executable.program().graph.cost(bound.node).flops : 0;
      ++time.calls;
    }
  }
  std::vector<std::pair<std::string, OpTime>> table(ops.begin(), ops.end());
  std::sort(table.begin(), table.end(), [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  if (options.json) {
    nlohmann::ordered_json report{{"median_seconds", median},
                                  {"min_seconds", seconds.front()},
                                  {"tokens_per_second", static_cast<double>(options.tokens) / median},
                                  {"gflop_per_second", flops / median / 1e9}};
    for (const auto& [name, time] : table) report["ops"][name] = {{"seconds", time.seconds}, {"calls", time.calls}, {"flops", time.flops}};
    std::printf("%s\n", report.dump(1).c_str());
    return ok();
  }
  std::printf("forward + backward + update of %lld tokens: median %.1f ms (min %.1f, %lld steps), %.0f tokens/s, %.1f GFLOP/s\n",
              static_cast<long long>(options.tokens), median * 1e3, seconds.front() * 1e3, static_cast<long long>(options.steps),
              static_cast<double>(options.tokens) / median, flops / median / 1e9);
  std::printf("%-28s %6s %10s %8s %10s\n", "op", "calls", "ms", "share", "GFLOP/s");
  for (const auto& [name, time] : table)
    std::printf("%-28s %6lld %10.2f %7.1f%% %10.1f\n", name.c_str(), static_cast<long long>(time.calls), time.seconds * 1e3,
                100 * time.seconds / median, time.flops / time.seconds / 1e9);
  return ok();
}

}  // namespace

void add_bench(CLI::App& app, Body& body) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand("bench", "time a training step and its ops");
  add_run_options(*command, *options);
  command->add_option("--tokens", options->tokens, "T")->capture_default_str()->check(CLI::Range(2, 1 << 30));
  command->add_option("--steps", options->steps, "measured steps, after one that warms up")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command->add_flag("--json", options->json, "print one JSON object");
  command->footer("Example: glim bench muse_glimmer_tiny --tokens 512");
  command->callback([options, &body] { body = [options] { return bench(*options); }; });
}

}  // namespace glim::cli
