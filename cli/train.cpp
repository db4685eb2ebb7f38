// glim train: a run of training, with its progress, its signals and its exit code.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include <atomic>
#include <csignal>
#include <cstdio>

#include "cli/command.h"
#include "cli/dry_run.h"
#include "runtime/run/training_run.h"

namespace glim::cli {
namespace {

struct TrainOptions {
  std::string config, resume, backend, trace;
  std::vector<std::string> set;
  bool json = false, dry_run = false;
};

// The first SIGINT or SIGTERM lets the step under way end and the run be saved; the second ends the process as the system would.
std::atomic<bool> stop_asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);
void ask_to_stop(int signal) {
  stop_asked = true;
  std::signal(signal, SIG_DFL);
}

class ProgressPrinter final : public RunObserver {
 public:
  ProgressPrinter(const TrainConfig& config, bool json) : config_(config), json_(json), is_terminal_(isatty(STDOUT_FILENO) != 0) {}

  void on_step(const StepMetrics& m, const Progress& p) override {
    if (json_) return print(step_line(m, p));
    if (!p.due && !is_terminal_) return;
    std::string text = fmt::format(
        "step {:>5}/{}  loss {:7.4f}  token accuracy {:5.1f} %  lr {:.2e}  grad norm {:8.3f}  {:>8.0f} tokens/s  {}", m.step, config_.steps,
        p.loss, 100 * p.token_accuracy, m.learning_rate, m.gradient_norm, p.tokens_per_second, in_flops(p.flops_per_second));
    if (p.mfu) text += fmt::format("  MFU {:.1f} %", 100 * *p.mfu);
    text += fmt::format("  {}  ETA {}{}", in_bytes(static_cast<double>(p.resident_bytes)), in_time(p.remaining_seconds),
                        m.skipped ? "  (skipped: gradients not finite)" : "");
    if (is_terminal_ && !p.due) {
      text.resize(std::min(text.size(), terminal_columns() - 1));  // a line that wraps could not be taken back
      std::printf("\r\033[K%s", text.c_str());
      has_open_line_ = true;
      std::fflush(stdout);
    } else {
      print(text);
    }
  }

  void on_validation(int64_t step, const Evaluation& e) override {
    print(json_ ? validation_line(step, e)
                : fmt::format("validation after step {}: loss {:.4f}  token accuracy {:.1f} %  ({} tokens)", step, e.loss,
                              100 * e.token_accuracy, e.num_valid));
  }

  void on_event(int64_t step, std::string_view event, const std::string& text) override {
    if (event == "skipped") return;  // the step's own line says so
    print(json_ ? event_line(step, event, text) : event == "warning" ? "warning: " + text : text);
  }

 private:
  void print(const std::string& line) {
    std::printf("%s%s\n", has_open_line_ ? "\r\033[K" : "", line.c_str());
    std::fflush(stdout);
    has_open_line_ = false;
  }
  static size_t terminal_columns() {
    winsize size{};
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
  }
  static std::string in_flops(double per_second) {
    return per_second >= 1e12 ? fmt::format("{:6.1f} TFLOP/s", per_second / 1e12) : fmt::format("{:6.1f} GFLOP/s", per_second / 1e9);
  }
  static std::string in_time(double seconds) {
    const auto whole = static_cast<int64_t>(seconds + 0.5);
    return whole < 100 ? fmt::format("{} s", whole) : fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  }

  const TrainConfig& config_;
  bool json_, is_terminal_, has_open_line_ = false;
};

void print_start(const TrainConfig& config, const TrainingSetup& setup, const CompiledModel& compiled) {
  const TrainingData& data = *setup.data;
  std::printf("%s: %s parameters, %s; %s tokens in %s rows of %lld tokens, %s held out\n", config.model.c_str(),
              with_commas(num_elements(compiled.parameters)).c_str(), std::string(to_string(config.dtype)).c_str(),
              with_commas(data.num_tokens()).c_str(), with_commas(data.num_rows()).c_str(), static_cast<long long>(config.tokens),
              with_commas(data.num_validation_tokens()).c_str());
}

Status train(const TrainOptions& options) {
  std::vector<std::string> settings = options.set;
  if (!options.backend.empty()) {
    GLIM_ASSIGN(const Backend backend, parse_backend(options.backend));
    settings.push_back(fmt::format("train.backend={}", to_string(backend)));
  }
  GLIM_ASSIGN(const TrainConfig config, load_train_config(options.config, settings));
  if (options.dry_run) return dry_run(config, options.json);
  GLIM_TRY(check_usable(config.backend));
  ProgressPrinter progress(config, options.json);
  GLIM_ASSIGN(TrainingRun run, TrainingRun::open(config, options.resume, progress));
  if (!options.json) print_start(config, run.trainer().setup(), run.trainer().model().compiled());
  run.set_trace(options.trace);
  std::signal(SIGINT, ask_to_stop);
  std::signal(SIGTERM, ask_to_stop);
  std::signal(SIGHUP, ask_to_stop);  // the terminal is gone
  std::signal(SIGPIPE, SIG_IGN);     // so is whoever read the lines: the run goes on
  GLIM_ASSIGN(const RunEnd end, run.run(stop_asked));
  if (end != RunEnd::kStopped) return ok();
  return Error{ErrorCode::kCancelled,
               fmt::format("stopped by a signal after step {}{}", run.trainer().steps_done(),
                           config.output.empty() ? "; nothing was kept, since 'output' names no folder" : "; go on with --resume auto")};
}

}  // namespace

void add_train(CLI::App& app, Body& body) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "train a model");
  command->add_option("config", options->config, "a TOML file: model, [data], [train], [checkpoint]")->required()->type_name("CONFIG.toml");
  command
      ->add_option("--resume", options->resume, "auto: the newest checkpoint of the output folder that verifies; or a checkpoint's folder")
      ->type_name("auto|FOLDER");
  command->add_option("--set", options->set, "override the file, for example --set train.steps=100")
      ->type_name("TABLE.KEY=VALUE")
      ->take_all();
  command->add_option("--backend", options->backend, "cpu or cuda, instead of what the file says");
  command
      ->add_option("--trace", options->trace,
                   "write a timeline of the third step (the last one when there are fewer), for chrome://tracing or ui.perfetto.dev")
      ->type_name("FILE");
  command->add_flag("--dry-run", options->dry_run, "print the plan, what the data holds and the steps, and stop");
  command->add_flag("--json", options->json, "one JSON object per line instead of text: the lines of metrics.jsonl");
  command->footer(
      "Example: glim train train.toml --resume auto, where train.toml says\n"
      "  model = \"muse_glimmer_tiny\"\n  [data]\n  text = [\"corpus.txt\"]\n  [train]\n  steps = 200\n  tokens = 512\n  learning_rate = "
      "2e-3\n  output = \"trained\"\n  [checkpoint]\n  every = 50\n  keep_last = 3\n"
      "The folder `trained` then holds model/ (a Hugging Face folder), checkpoints/, metrics.jsonl and run.html.");
  command->callback([options, &body] { body = [options] { return train(*options); }; });
}

}  // namespace glim::cli
