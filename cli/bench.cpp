// glim bench step: how fast a training step of a model runs here, and where its time goes. glim bench: bench_ops.cpp.
#include <sys/resource.h>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <map>

#include "cli/command.h"
#include "ops/builtin_ops.h"
#include "runtime/model.h"
#include "runtime/random.h"
#include "runtime/run/progress.h"
#include "runtime/trainer.h"

namespace glim::cli {
namespace {

struct BenchOptions : ModelOptions {
  int64_t tokens = 512, micro_steps = 1, warm_up = 3, steps = 20;
  bool strict = false;
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
  return model.set_scalar(kLearningRateName, 1e-3);
}

size_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) * 1024;
}

Result<Model> open_bench_model(const BenchOptions& options, Backend backend) {
  GLIM_ASSIGN(const DType dtype, real_dtype(options));
  GLIM_ASSIGN(const ModelSource source, open_model(options.model, options.set, ""));
  CompileOptions compile_options;
  compile_options.real = dtype;
  compile_options.runtime_dims = {{"T", options.tokens}, {"G", 1}};
  compile_options.optional_inputs = {"denominator"};
  compile_options.programs = {ProgramKind::kFirst, ProgramKind::kUpdate};
  if (options.micro_steps > 1) compile_options.programs.push_back(ProgramKind::kNext);
  GLIM_ASSIGN(CompiledModel compiled, compile(source.spec, builtin_ops(), compile_options));
  GLIM_ASSIGN(Model model, Model::create(std::move(compiled), options.threads, backend,
                                         options.strict ? ProductAlgorithms::kFixed : ProductAlgorithms::kTimed));
  GLIM_TRY(model.initialise(1));
  GLIM_TRY(set_random_inputs(model, options.tokens));
  GLIM_TRY(model.set_scalar("denominator", static_cast<double>((options.tokens - 1) * options.micro_steps)));
  return model;
}

// The programs of one training step, in order.
std::vector<ProgramKind> programs_of(const BenchOptions& options) {
  std::vector<ProgramKind> programs(static_cast<size_t>(options.micro_steps), ProgramKind::kNext);
  programs.front() = ProgramKind::kFirst;
  programs.push_back(ProgramKind::kUpdate);
  return programs;
}

// The least time that each op took in any of several steps: what else the machine does is not the op's.
Result<std::map<std::string, OpTime>> profile(Model& model, const std::vector<ProgramKind>& programs, int64_t num_steps) {
  std::map<std::string, OpTime> ops;
  for (const ProgramKind kind : programs) {
    const Executable& executable = *model.executable(kind);
    std::vector<double> best(executable.steps().size(), std::numeric_limits<double>::infinity());
    for (int64_t k = 0; k < num_steps; ++k) {
      std::vector<StepTime> times(best.size());
      model.executor().set_profile(&times);
      const Status status = model.run(kind);
      model.executor().set_profile(nullptr);
      GLIM_TRY(status);
      std::ranges::transform(best, times, best.begin(), [](double x, const StepTime& time) { return std::min(x, time.seconds); });
    }
    for (size_t k = 0; k < best.size(); ++k) {
      const BoundStep& bound = executable.steps()[k];
      OpTime& time = ops[bound.def != nullptr ? std::string(bound.def->name) : "(copy)"];
      time.seconds += best[k];
      time.flops += bound.def != nullptr ? executable.program().graph.cost(bound.node).flops : 0;
      ++time.calls;
    }
  }
  return ops;
}

// Whole steps are timed without the profile; the table of ops with it, afterwards.
Status bench_step(const BenchOptions& options) {
  GLIM_ASSIGN(const Backend backend, chosen_backend(options.backend));
  const size_t start_bytes = resident_bytes();
  GLIM_ASSIGN(Model model, open_bench_model(options, backend));
  const std::vector<ProgramKind> programs = programs_of(options);
  double flops = 0;
  for (const ProgramKind kind : programs) flops += count_flops(model.executable(kind)->program().graph);
  std::vector<double> seconds;
  for (int64_t k = 0; k < options.warm_up + options.steps; ++k) {
    const auto start = std::chrono::steady_clock::now();
    for (const ProgramKind kind : programs) GLIM_TRY(model.run(kind));
    if (k >= options.warm_up) seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  GLIM_ASSIGN(const double loss, model.scalar(ProgramKind::kFirst, "loss"));
  const size_t peak = peak_bytes() - std::min(peak_bytes(), start_bytes);
  std::sort(seconds.begin(), seconds.end());
  const double median = (seconds[(seconds.size() - 1) / 2] + seconds[seconds.size() / 2]) / 2;
  const double tokens = static_cast<double>(options.tokens * options.micro_steps);
  GLIM_ASSIGN(const auto ops, profile(model, programs, options.steps));
  std::vector<std::pair<std::string, OpTime>> table(ops.begin(), ops.end());
  std::sort(table.begin(), table.end(), [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  double profiled = 0;
  for (const auto& [name, time] : table) profiled += time.seconds;
  const int threads = model.executor().pool().num_threads();
  if (options.json) {
    nlohmann::ordered_json report{{"median_seconds", median},
                                  {"min_seconds", seconds.front()},
                                  {"tokens_per_second", tokens / median},
                                  {"gflop_per_second", flops / median / 1e9},
                                  {"peak_bytes", peak},
                                  {"start_bytes", start_bytes},
                                  {"threads", threads},
                                  {"backend", to_string(backend)},
                                  {"products", product_library(backend)},
                                  {"attention", attention_library(backend)},
                                  {"loss", loss}};
    for (const auto& [name, time] : table) report["ops"][name] = {{"seconds", time.seconds}, {"calls", time.calls}, {"flops", time.flops}};
    std::printf("%s\n", report.dump(1).c_str());
    return ok();
  }
  std::printf("forward + backward + update of %lld x %lld tokens, %s, %s, %d thread(s), products: %s, attention: %s\n",
              static_cast<long long>(options.micro_steps), static_cast<long long>(options.tokens), options.dtype.c_str(),
              options.backend.c_str(), threads, product_library(backend).c_str(), attention_library(backend).c_str());
  for (const std::string& line : take_backend_notes()) std::printf("%s\n", line.c_str());
  std::printf("median %.2f ms, min %.2f ms (%lld steps), %.0f tokens/s, %.1f GFLOP/s; peak memory of the host %s above the start\n",
              median * 1e3, seconds.front() * 1e3, static_cast<long long>(options.steps), tokens / median, flops / median / 1e9,
              in_bytes(static_cast<double>(peak)).c_str());
  std::printf("%-28s %6s %10s %8s %10s\n", "op (least of its times)", "calls", "ms", "share", "GFLOP/s");
  for (const auto& [name, time] : table)
    std::printf("%-28s %6lld %10.3f %7.1f%% %10.1f\n", name.c_str(), static_cast<long long>(time.calls), time.seconds * 1e3,
                100 * time.seconds / profiled, time.flops / time.seconds / 1e9);
  std::printf("%-28s %6s %10.3f\n", "all", "", profiled * 1e3);
  return ok();
}

}  // namespace

void add_bench(CLI::App& app, Body& body) {
  CLI::App* bench = app.add_subcommand("bench", "measure how fast this machine runs every op, or the steps of a model");
  bench->require_subcommand(0, 1);
  add_bench_ops(*bench, body);
  auto options = std::make_shared<BenchOptions>();
  CLI::App* step = bench->add_subcommand("step", "time whole training steps of a model, and its ops");
  add_run_options(*step, *options);
  step->add_option("--tokens", options->tokens, "T: tokens of a micro-step")->capture_default_str()->check(CLI::Range(2, 1 << 30));
  step->add_option("--micro-steps", options->micro_steps, "forward and backward passes per update")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  step->add_option("--warm-up", options->warm_up, "steps before the measured ones")->capture_default_str()->check(CLI::Range(0, 1 << 20));
  step->add_option("--steps", options->steps, "measured steps")->capture_default_str()->check(CLI::Range(1, 1 << 20));
  step->add_flag("--strict", options->strict, "cuda: the library's first proposal for each matrix product instead of the fastest");
  step->add_flag("--json", options->json, "print one JSON object");
  step->footer("Example: glim bench step muse_glimmer_tiny --tokens 512 --threads 2");
  step->callback([options, &body] { body = [options] { return bench_step(*options); }; });
}

}  // namespace glim::cli
