#include "cli/dry_run.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "runtime/checkpoint/snapshot.h"

namespace glim::cli {
namespace {

using Json = nlohmann::ordered_json;

Json part(const DataStatistics::Part& p) {
  return {{"pieces", p.num_pieces}, {"tokens", p.num_tokens}, {"valid_targets", p.num_valid}, {"rows", p.num_rows}, {"padding", p.padding}};
}

Json describe(const TrainingSetup& setup) {
  const TrainConfig& config = setup.config;
  const DataStatistics& data = setup.data->statistics();
  const std::array<size_t, kNumArenas> bytes = setup.compiled.arena_bytes();
  const size_t saved = state_bytes(setup.compiled), snapshot = config.output.empty() ? 0 : saved;
  size_t total = snapshot;
  Json arenas;
  for (size_t a = 0; a < kNumArenas; ++a) {
    arenas[std::string(to_string(static_cast<Arena>(a)))] = bytes[a];
    total += bytes[a];
  }
  const size_t beside = bytes_beside_arenas(config.backend);
  const double rows = static_cast<double>(config.steps) * static_cast<double>(config.micro_steps);
  const double flops = setup.micro_step_flops * static_cast<double>(config.micro_steps) + setup.update_flops;
  return {{"model", config.model},
          {"num_parameters", num_elements(setup.compiled.parameters)},
          {"dtype", to_string(config.dtype)},
          {"backend", to_string(config.backend)},
          {"data",
           {{"documents", data.num_documents},
            {"empty", data.num_empty},
            {"without_targets", data.num_unlabelled},
            {"split", data.num_split},
            {"dropped", data.num_dropped},
            {"training", part(data.training)},
            {"validation", part(data.validation)}}},
          {"steps", config.steps},
          {"micro_steps", config.micro_steps},
          {"tokens_per_micro_step", config.tokens},
          {"epochs", rows / static_cast<double>(data.training.num_rows)},
          {"flops_per_step", flops},
          {"flops", flops * static_cast<double>(config.steps)},
          {"arenas", std::move(arenas)},
          {"snapshot_bytes", snapshot},
          {"beside_arenas_bytes", beside},
          {"memory_bytes", total + beside},
          {"checkpoint_bytes", saved},
          {"checkpoint_every", config.checkpoint.every},
          {"checkpoints_kept", config.checkpoint.keep_last}};
}

void print_text(const TrainingSetup& setup, const Json& plan) {
  const TrainConfig& config = setup.config;
  const DataStatistics& data = setup.data->statistics();
  const auto line = [](std::string_view name, const std::string& text) {
    std::printf("%-12s %s\n", std::string(name).c_str(), text.c_str());
  };
  const auto bytes = [&](const Json& value) { return in_bytes(value.get<double>()); };
  line("model",
       fmt::format("{}: {} parameters, {}", config.model, with_commas(num_elements(setup.compiled.parameters)), to_string(config.dtype)));
  line("data", fmt::format("{} documents ({} empty, {} without targets, {} split, {} dropped)", with_commas(data.num_documents),
                           with_commas(data.num_empty), with_commas(data.num_unlabelled), with_commas(data.num_split),
                           with_commas(data.num_dropped)));
  for (const auto& [name, p] : {std::pair("  training", data.training), std::pair("  validation", data.validation)}) {
    line(name, fmt::format("{} tokens, {} of them targets, in {} rows of {} ({:.1f} % padding)", with_commas(p.num_tokens),
                           with_commas(p.num_valid), with_commas(p.num_rows), config.tokens, 100 * p.padding));
  }
  line("steps", fmt::format("{} of {} micro-step{}: {:.2f} epochs", config.steps, config.micro_steps, config.micro_steps == 1 ? "" : "s",
                            plan["epochs"].get<double>()));
  line("schedule", fmt::format("learning rate to {:.3g} in {} steps, then to {:.3g} by cosine", config.learning_rate, config.warmup_steps,
                               config.final_learning_rate));
  line("work", fmt::format("{:.4g} GFLOP a step, {:.4g} TFLOP in all", plan["flops_per_step"].get<double>() / 1e9,
                           plan["flops"].get<double>() / 1e12));
  line("memory", fmt::format("{} in all on {}, rematerialise = {}", bytes(plan["memory_bytes"]), to_string(config.backend),
                             to_string(config.rematerialise)));
  for (const auto& [name, value] : plan["arenas"].items()) {
    if (value.get<size_t>() > 0) line("  " + name, bytes(value));
  }
  if (plan["snapshot_bytes"].get<size_t>() > 0)
    line("  snapshot", bytes(plan["snapshot_bytes"]) + ", the copy that a checkpoint is written from while training goes on");
  if (const Json& beside = plan["beside_arenas_bytes"]; beside.get<size_t>() > 0) line("  products", bytes(beside) + " of workspace");
  if (config.output.empty()) return line("output", "none: nothing is kept");
  line("output", config.output);
  line("checkpoints",
       fmt::format("{}, {} each, the newest {} stay{}",
                   config.checkpoint.every > 0 ? fmt::format("every {} steps and at the end", config.checkpoint.every) : "at the end",
                   bytes(plan["checkpoint_bytes"]), config.checkpoint.keep_last,
                   config.checkpoint.keep_every > 0 ? fmt::format(", and every {}th step", config.checkpoint.keep_every) : ""));
}

}  // namespace

Status dry_run(const TrainConfig& config, bool json) {
  GLIM_ASSIGN(const TrainingSetup setup, prepare_training(config));
  const Json plan = describe(setup);
  if (json)
    std::printf("%s\n", plan.dump(1, ' ', false, Json::error_handler_t::replace).c_str());  // a path need not be UTF-8
  else
    print_text(setup, plan);
  return ok();
}

}  // namespace glim::cli
