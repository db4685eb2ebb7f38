// glim: one program, one sub-command per file of this folder.
#include <cstdio>
#include <exception>
#include <new>

#include "cli/command.h"
#include "engine/suggest.h"

namespace {

// What is wrong with the arguments, with the closest command or option for each one that is unknown.
std::string explain(const CLI::App* app, const CLI::Error& error) {
  std::string text = std::string("glim: ") + error.what();
  const CLI::App* chosen = app;
  while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands()[0];
  std::vector<std::string> known;
  for (const CLI::App* command : chosen->get_subcommands({})) known.push_back(command->get_name());
  const bool wants_command = !known.empty();
  for (const CLI::Option* option : wants_command ? std::vector<const CLI::Option*>{} : chosen->get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const std::string& word : app->remaining(/*recurse=*/true)) {
    if (word.starts_with("-") != wants_command) text += glim::did_you_mean(word, known);
  }
  return text + "\nRun glim --help, or glim COMMAND --help.\n";
}

int run(int argc, char** argv) {
  using namespace glim;
  CLI::App app{"glim defines, trains and runs models as compute graphs", "glim"};
  app.require_subcommand(1);
  app.set_version_flag("--version", GLIM_VERSION);
  app.failure_message(explain);
  cli::Body body;
  cli::add_run(app, body);
  cli::add_train(app, body);
  cli::add_eval(app, body);
  cli::add_generate(app, body);
  cli::add_check(app, body);
  cli::add_plan(app, body);
  cli::add_graph(app, body);
  cli::add_ops(app, body);
  cli::add_bench(app, body);
  cli::add_data(app, body);
  cli::add_import(app, body);
  cli::add_export(app, body);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const Status status = body();
  if (status && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    std::fprintf(stderr, "glim: the output could not be written\n");
    return exit_code(ErrorCode::kIo);
  }
  if (status) return 0;
  std::fprintf(stderr, "glim: %s\n", status.error().to_string().c_str());
  return exit_code(status.error().code);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "glim: out of memory\n");
    return 4;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "glim: %s\n", error.what());
    return 1;
  }
}
