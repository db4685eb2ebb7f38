// glim: one program, one sub-command per file of this folder.
#include <cstdio>
#include <exception>
#include <new>

#include "cli/command.h"

namespace {

int run(int argc, char** argv) {
  using namespace glim;
  CLI::App app{"glim defines, trains and runs models as compute graphs", "glim"};
  app.require_subcommand(1);
  app.set_version_flag("--version", GLIM_VERSION);
  app.failure_message([](const CLI::App*, const CLI::Error& error) { return std::string("glim: ") + error.what() + "\nRun glim --help, or glim COMMAND --help.\n"; });
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
  cli::add_import(app, body);
  cli::add_export(app, body);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const Status status = body();
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
