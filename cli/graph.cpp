// glim graph: prints a program of a model as text, DOT or SVG, after any pass.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "cli/command.h"
#include "engine/dot.h"
#include "engine/passes/pass_list.h"
#include "engine/print.h"
#include "engine/suggest.h"
#include "ops/builtin_ops.h"
#include "runtime/atomic_file.h"
#include "runtime/compile.h"

namespace glim::cli {
namespace {

struct GraphOptions : ModelOptions {
  std::string stop_after, format = "text", program = "first", output;
  std::vector<std::string> outputs, disabled;
  int64_t tokens = 512, segments = 1, rows = 1;
  bool origins = false, passes = false, timings = false;
};

// Graphviz draws; it is a program of its own, so that nothing links against it.
Result<std::string> draw_svg(const std::string& dot) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) return Error{ErrorCode::kIo, fmt::format("there is no folder for temporary files: {}; TMPDIR may name one", error.message())};
  const std::string file = (folder / fmt::format("glim-{}.dot", getpid())).string();
  GLIM_TRY(write_file_atomically(file, dot));
  std::FILE* pipe = popen(fmt::format("dot -Tsvg '{}' 2>/dev/null", file).c_str(), "r");
  std::string svg;
  char buffer[4096];
  for (size_t n = 0; pipe != nullptr && (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) svg.append(buffer, n);
  const int status = pipe != nullptr ? pclose(pipe) : -1;
  std::filesystem::remove(file, error);
  if (status != 0)
    return invalid_argument("--format svg needs Graphviz: the program 'dot' is not there or failed (Debian: apt-get install graphviz)");
  return svg;
}

void list_passes() {
  for (const auto& [when, passes] : {std::pair{"before autodiff", forward_passes()}, std::pair{"after autodiff", joint_passes()}}) {
    std::printf("%s\n", when);
    for (const Pass& pass : passes) std::printf("  %-20s %s\n", std::string(pass.name).c_str(), std::string(pass.why_here).c_str());
  }
}

Status show(const GraphOptions& options) {
  if (options.passes) {
    list_passes();
    return ok();
  }
  GLIM_ASSIGN(const DType dtype, real_dtype(options));
  GLIM_ASSIGN(const ModelSource source, open_model(options.model, options.set, ""));
  const std::optional<ProgramKind> kind = parse_program_kind(options.program);
  constexpr std::string_view kPrograms[] = {"forward", "first", "next", "update"}, kFormats[] = {"text", "dot", "svg"};
  if (!kind)
    return invalid_argument(
        fmt::format("--program is forward, first, next or update, not '{}'{}", options.program, did_you_mean(options.program, kPrograms)));
  if (std::find(std::begin(kFormats), std::end(kFormats), options.format) == std::end(kFormats)) {
    return invalid_argument(
        fmt::format("--format is text, dot or svg, not '{}'{}", options.format, did_you_mean(options.format, kFormats)));
  }
  CompileOptions compile_options;
  compile_options.real = dtype;
  compile_options.runtime_dims = {{"T", options.tokens}, {"G", options.segments}, {"R", options.rows}};
  compile_options.outputs = options.outputs;
  if (*kind != ProgramKind::kForward || options.outputs.empty()) compile_options.optional_inputs = {"denominator"};
  compile_options.driver.stop_after = options.stop_after;
  compile_options.driver.disabled = options.disabled;
  std::vector<PassReport> reports;
  compile_options.driver.reports = &reports;
  BuiltModel facts{Graph(builtin_ops()), {}, {}, {}};
  GLIM_ASSIGN(const Graph graph, lower(source.spec, builtin_ops(), compile_options, *kind, facts));
  for (const PassReport& report : reports) {
    if (options.timings)
      std::fprintf(stderr, "%-20s %8.3f ms  %6zu -> %zu nodes\n", report.name.c_str(), report.seconds * 1e3, report.nodes_before,
                   report.nodes_after);
  }
  std::string text = options.format == "text" ? print(graph, {options.origins}) : to_dot(graph);
  if (options.format == "svg") {
    GLIM_ASSIGN(text, draw_svg(text));
  }
  if (!options.output.empty()) return write_file_atomically(options.output, text);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return ok();
}

}  // namespace

void add_graph(CLI::App& app, Body& body) {
  auto options = std::make_shared<GraphOptions>();
  CLI::App* command = app.add_subcommand("graph", "print a model's graph after any pass");
  add_model_options(*command, *options);
  command->add_option("--program", options->program, "forward, first or next (training micro-steps), or update (the optimizer)")
      ->capture_default_str();
  command->add_option("--stop-after", options->stop_after, "a pass, or autodiff; default: after all passes");
  command->add_option("--disable", options->disabled, "leave a pass out");
  command->add_option("--format", options->format, "text, dot or svg (through Graphviz)")->capture_default_str();
  command->add_option("--outputs", options->outputs, "outputs that shall be computed, for example loss logits hidden.3");
  command->add_option("--tokens", options->tokens, "T")->capture_default_str()->check(CLI::Range(1, 1 << 30));
  command->add_option("--segments", options->segments, "G")->capture_default_str()->check(CLI::Range(1, 1 << 30));
  command->add_option("--dtype", options->dtype, "f32, f64 or bf16")->capture_default_str();
  command->add_flag("--passes", options->passes, "list the passes, and why each stands where it does");
  command->add_flag("--timings", options->timings, "print how long each pass took, to stderr");
  command->add_flag("--origins", options->origins, "say where each node comes from");
  command->add_option("-o,--output", options->output, "write to a file")->type_name("FILE");
  command->footer(
      "Example: glim graph muse_glimmer_tiny --stop-after fuse_forward\nExample: glim graph muse_glimmer_tiny --set num_layers=1 --format "
      "svg -o graph.svg");
  command->callback([options, &body] { body = [options] { return show(*options); }; });
}

}  // namespace glim::cli
