#pragma once
// What the sub-commands share. Each one lives in a file of its own: add_NAME(app) declares its options and its body.
#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

#include "runtime/backend.h"
#include "runtime/model_source.h"

namespace glim::cli {

// The body of the sub-command that was chosen; its error decides the exit code.
using Body = std::function<Status()>;

void add_run(CLI::App& app, Body& body);
void add_train(CLI::App& app, Body& body);
void add_eval(CLI::App& app, Body& body);
void add_generate(CLI::App& app, Body& body);
void add_check(CLI::App& app, Body& body);
void add_plan(CLI::App& app, Body& body);
void add_graph(CLI::App& app, Body& body);
void add_ops(CLI::App& app, Body& body);
void add_bench(CLI::App& app, Body& body);
void add_bench_ops(CLI::App& bench, Body& body);  // what `glim bench` does without a sub-command
void add_data(CLI::App& app, Body& body);
void add_import(CLI::App& app, Body& body);
void add_export(CLI::App& app, Body& body);

// Options that several commands have.
struct ModelOptions {
  std::string model, weights, dtype = "f32", backend = "cpu";
  std::vector<std::string> set;
  int threads = 0;
  bool json = false;
};
void add_model_options(CLI::App& command, ModelOptions& options);  // MODEL, --set
void add_run_options(CLI::App& command, ModelOptions& options);    // the above, --weights, --dtype, --backend, --threads
void add_threads_option(CLI::App& command, int& threads);          // --threads, or GLIM_NUM_THREADS: 1 to 1024, 0 = every core
[[nodiscard]] Result<DType> real_dtype(const ModelOptions& options);
// An error when it cannot be used here.
[[nodiscard]] Result<Backend> chosen_backend(const std::string& name);

// "27,854,780,928"; "1.23 GB".
[[nodiscard]] std::string with_commas(int64_t number);
[[nodiscard]] std::string in_bytes(double bytes);

}  // namespace glim::cli
