#include "cli/command.h"

#include <fmt/format.h>

namespace glim::cli {

void add_model_options(CLI::App& command, ModelOptions& options) {
  command
      .add_option("model", options.model,
                  "a TOML file, a Hugging Face folder or its config.json, or a shipped model such as muse_glimmer_tiny")
      ->required()
      ->type_name("MODEL");
  command.add_option("--set", options.set, "set a dim, constant or flag of the model, for example --set num_layers=2")
      ->type_name("NAME=VALUE")
      ->take_all();
}

void add_run_options(CLI::App& command, ModelOptions& options) {
  add_model_options(command, options);
  command.add_option("--weights", options.weights, "a .safetensors file or an HF folder")->type_name("PATH");
  command.add_option("--dtype", options.dtype, "f32, f64 or bf16 (f32 arithmetic)")->capture_default_str();
  command.add_option("--backend", options.backend, "cpu or cuda")->capture_default_str();
  add_threads_option(command, options.threads);
}

void add_threads_option(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "threads (default: every core, or GLIM_NUM_THREADS)")
      ->envname("GLIM_NUM_THREADS")
      ->check(CLI::Range(0, 1024));
}

Result<DType> real_dtype(const ModelOptions& options) {
  const std::optional<DType> dtype = parse_dtype(options.dtype);
  if (!dtype || !is_float(*dtype)) return invalid_argument(fmt::format("--dtype is f32, f64 or bf16, not '{}'", options.dtype));
  return *dtype;
}

Result<Backend> chosen_backend(const std::string& name) {
  GLIM_ASSIGN(const Backend backend, parse_backend(name));
  GLIM_TRY(check_usable(backend));
  return backend;
}

std::string with_commas(int64_t number) {
  std::string digits = std::to_string(number), text;
  for (size_t k = 0; k < digits.size(); ++k) {
    if (k > 0 && (digits.size() - k) % 3 == 0 && digits[k - 1] != '-') text += ',';
    text += digits[k];
  }
  return text;
}

std::string in_bytes(double bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

}  // namespace glim::cli
