// glim train: trains a model over bytes on text files.
#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>

#include "cli/command.h"
#include "runtime/trainer.h"

namespace glim::cli {
namespace {

struct TrainOptions {
  std::string config, backend;
  bool json = false;
};

// Averages over the steps since the last line, so that a line says what its interval was like.
struct Interval {
  double loss = 0, accuracy_correct = 0, seconds = 0, flops = 0;
  int64_t steps = 0, num_valid = 0, num_tokens = 0;

  void add(const StepMetrics& m) {
    loss += m.loss;
    accuracy_correct += m.token_accuracy * static_cast<double>(m.num_valid);
    seconds += m.seconds;
    flops += m.flops;
    num_valid += m.num_valid;
    num_tokens += m.num_tokens;
    ++steps;
  }
};

class ProgressPrinter {
 public:
  ProgressPrinter(const TrainConfig& config, bool json) : config_(config), json_(json), is_terminal_(isatty(STDOUT_FILENO) != 0) {}

  void step(const StepMetrics& m, double elapsed) {
    interval_.add(m);
    const bool last = m.step == config_.steps, due = m.step == 1 || m.step % config_.log_every == 0 || last;
    const double loss = interval_.loss / static_cast<double>(interval_.steps);
    const double accuracy = interval_.num_valid > 0 ? interval_.accuracy_correct / static_cast<double>(interval_.num_valid) : 0;
    const double tokens_per_second = static_cast<double>(interval_.num_tokens) / interval_.seconds,
                 gflops = interval_.flops / interval_.seconds / 1e9;
    double remaining = elapsed / static_cast<double>(m.step) * static_cast<double>(config_.steps - m.step);
    if (config_.max_seconds > 0) remaining = std::max(0.0, std::min(remaining, config_.max_seconds - elapsed));
    if (json_ && due) {
      const nlohmann::ordered_json line{{"step", m.step},
                                        {"loss", loss},
                                        {"token_accuracy", accuracy},
                                        {"learning_rate", m.learning_rate},
                                        {"gradient_norm", m.gradient_norm},
                                        {"skipped", m.skipped},
                                        {"tokens_per_second", tokens_per_second},
                                        {"gflop_per_second", gflops},
                                        {"seconds", elapsed}};
      std::printf("%s\n", line.dump().c_str());
    } else if (!json_ && (due || is_terminal_)) {
      const std::string text = fmt::format(
          "step {:>5}/{}  loss {:7.4f}  token accuracy {:5.1f} %  lr {:.2e}  grad norm {:8.3f}  {:>8.0f} tokens/s  {:6.1f} GFLOP/s  ETA "
          "{:.0f} s{}",
          m.step, config_.steps, loss, 100 * accuracy, m.learning_rate, m.gradient_norm, tokens_per_second, gflops, remaining,
          m.skipped ? "  (skipped: gradients not finite)" : "");
      std::printf(is_terminal_ && !due ? "\r%s" : is_terminal_ ? "\r%s\n" : "%s\n", text.c_str());
    }
    std::fflush(stdout);
    if (due) interval_ = {};
  }

  void validation(int64_t step, const Evaluation& e) {
    if (json_) {
      std::printf(
          "%s\n",
          nlohmann::ordered_json{
              {"step", step}, {"validation_loss", e.loss}, {"validation_token_accuracy", e.token_accuracy}, {"num_valid", e.num_valid}}
              .dump()
              .c_str());
    } else {
      std::printf("validation after step %lld: loss %.4f  token accuracy %.1f %%  (%lld tokens)\n", static_cast<long long>(step), e.loss,
                  100 * e.token_accuracy, static_cast<long long>(e.num_valid));
    }
    std::fflush(stdout);
  }

 private:
  const TrainConfig& config_;
  bool json_, is_terminal_;
  Interval interval_;
};

Status train(const TrainOptions& options) {
  GLIM_ASSIGN(TrainConfig config, load_train_config(options.config));
  if (!options.backend.empty()) {
    GLIM_ASSIGN(config.backend, parse_backend(options.backend));
  }
  GLIM_TRY(check_usable(config.backend));
  GLIM_ASSIGN(Trainer trainer, Trainer::create(config));
  const CompiledModel& compiled = trainer.model().compiled();
  if (!options.json) {
    std::printf("%s: %s parameters, %s; %s bytes of text in %s rows of %lld tokens, %s held out\n", config.model.c_str(),
                with_commas(num_elements(compiled.parameters)).c_str(), std::string(to_string(config.dtype)).c_str(),
                with_commas(trainer.data().num_bytes()).c_str(), with_commas(trainer.data().num_rows()).c_str(),
                static_cast<long long>(config.tokens), with_commas(trainer.data().num_validation_bytes()).c_str());
  }
  ProgressPrinter progress(config, options.json);
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  while (trainer.steps_done() < config.steps && (config.max_seconds <= 0 || elapsed() < config.max_seconds)) {
    GLIM_ASSIGN(const StepMetrics metrics, trainer.step());
    progress.step(metrics, elapsed());
    if (config.validate_every == 0 || metrics.step % config.validate_every != 0 || metrics.step == config.steps) continue;
    GLIM_ASSIGN(const Evaluation evaluation, trainer.validate());
    progress.validation(metrics.step, evaluation);
  }
  if (trainer.data().num_validation_rows() > 0) {
    GLIM_ASSIGN(const Evaluation evaluation, trainer.validate());
    progress.validation(trainer.steps_done(), evaluation);
  }
  if (!config.output.empty()) {
    GLIM_TRY(trainer.save(config.output));
    if (!options.json) std::printf("weights written to %s\n", config.output.c_str());
  }
  return ok();
}

}  // namespace

void add_train(CLI::App& app, Body& body) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "train a model on text");
  command->add_option("config", options->config, "a TOML file: model, [data], [train]")->required()->type_name("CONFIG.toml");
  command->add_option("--backend", options->backend, "cpu or cuda, instead of what the file says");
  command->add_flag("--json", options->json, "one JSON object per line instead of text");
  command->footer(
      "Example: glim train train.toml, where train.toml says\n"
      "  model = \"muse_glimmer_tiny\"\n  [data]\n  text = [\"corpus.txt\"]\n  [train]\n  steps = 200\n  tokens = 512\n  learning_rate = "
      "2e-3\n  output = \"trained\"");
  command->callback([options, &body] { body = [options] { return train(*options); }; });
}

}  // namespace glim::cli
