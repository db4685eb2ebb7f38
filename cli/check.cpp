// glim check: are this model's gradients right, and do its lowered programs compute what the plain ones do?
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <cstdio>

#include "cli/command.h"
#include "ops/builtin_ops.h"
#include "runtime/check_model.h"

namespace glim::cli {
namespace {

Status check(const ModelOptions& options, CheckOptions check_options) {
  GLIM_ASSIGN(check_options.backend, chosen_backend(options.backend));
  check_options.num_threads = options.threads;
  GLIM_ASSIGN(const ModelSource source, open_model(options.model, options.set, ""));
  GLIM_ASSIGN(const std::vector<CheckLine> lines, check_model(source.spec, builtin_ops(), check_options));
  size_t num_failed = 0;
  for (const CheckLine& line : lines) {
    num_failed += line.passed() ? 0 : 1;
    if (options.json) {
      std::printf("%s\n",
                  nlohmann::ordered_json{{"check", line.what}, {"error", line.error}, {"bound", line.bound}, {"passed", line.passed()}}
                      .dump()
                      .c_str());
    } else {
      std::printf("%-4s %-64s error %.1e  bound %.1e\n", line.passed() ? "ok" : "FAIL", line.what.c_str(), line.error, line.bound);
    }
  }
  if (!options.json) std::printf("%zu of %zu checks passed\n", lines.size() - num_failed, lines.size());
  if (num_failed > 0) return Error{ErrorCode::kNumeric, fmt::format("{} of {} checks failed", num_failed, lines.size())};
  return ok();
}

}  // namespace

void add_check(CLI::App& app, Body& body) {
  auto options = std::make_shared<ModelOptions>();
  auto check_options = std::make_shared<CheckOptions>();
  CLI::App* command = app.add_subcommand("check", "check gradients against finite differences, and lowered against plain programs, in f64");
  add_model_options(*command, *options);
  command->add_option("--backend", options->backend, "cpu or cuda")->capture_default_str();
  add_threads_option(*command, options->threads);
  command->add_option("--tokens", check_options->tokens, "T")->capture_default_str()->check(CLI::Range(2, 1 << 20));
  command->add_option("--segments", check_options->segments, "G")->capture_default_str()->check(CLI::Range(1, 1 << 20));
  command->add_option("--seed", check_options->seed, "of parameters and tokens")->capture_default_str();
  command->add_option("--tolerance", check_options->tolerance, "of gradients, relative")->capture_default_str();
  command->add_flag("--steps-only", check_options->steps_only, "only each step of --backend cuda beside the CPU: for large models");
  command->add_flag("--json", options->json, "one JSON object per line");
  command->footer("Example: glim check muse_glimmer_tiny --set num_layers=2 --tokens 24");
  command->callback([options, check_options, &body] { body = [options, check_options] { return check(*options, *check_options); }; });
}

}  // namespace glim::cli
