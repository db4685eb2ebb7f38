// glim bench: every case of every op, with its time and how far that is from what the machine can do.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <cstdio>

#include "cli/command.h"
#include "engine/suggest.h"
#include "ops/builtin_ops.h"
#include "runtime/op_bench.h"

namespace glim::cli {
namespace {

struct Arguments : ModelOptions {
  std::string op;
  int64_t extent = 0;
  double seconds = 0.02;
};

Result<OpBenchOptions> options_of(const Arguments& arguments) {
  OpBenchOptions options;
  GLIM_ASSIGN(options.backend, chosen_backend(arguments.backend));
  ModelOptions with_dtype = arguments;
  if (with_dtype.dtype.empty()) with_dtype.dtype = options.backend == Backend::kCpu ? "f32" : "bf16";
  GLIM_ASSIGN(options.real, real_dtype(with_dtype));
  options.extent = arguments.extent;
  options.seconds = arguments.seconds;
  options.num_threads = arguments.threads;
  return options;
}

// Rows of the table to measure: one, or all.
Result<std::vector<OpId>> chosen_ops(const OpTable& table, const std::string& name) {
  if (!name.empty()) {
    const std::optional<OpId> op = table.find(name);
    if (!op || *op == kLeafOp) return invalid_argument(fmt::format("there is no op '{}'{}", name, did_you_mean(name, table.names())));
    return std::vector<OpId>{*op};
  }
  std::vector<OpId> ops;
  for (size_t row = 1; row < table.size(); ++row) ops.push_back(OpId{static_cast<uint16_t>(row)});
  return ops;
}

std::string in_time(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.2f} us", seconds * 1e6) : fmt::format("{:.3f} ms", seconds * 1e3);
}

Status bench_ops(const Arguments& arguments) {
  const OpTable& table = builtin_ops();
  GLIM_ASSIGN(const OpBenchOptions options, options_of(arguments));
  GLIM_ASSIGN(const std::vector<OpId> ops, chosen_ops(table, arguments.op));
  GLIM_ASSIGN(const Roofline roofline, measure_roofline(table, options));
  nlohmann::ordered_json report{{"backend", to_string(options.backend)},
                                {"dtype", to_string(options.real)},
                                {"products", product_library(options.backend)},
                                {"copy_bytes_per_second", roofline.bytes_per_second},
                                {"product_flops_per_second", roofline.flops_per_second},
                                {"cases", nlohmann::ordered_json::array()}};
  if (!arguments.json) {
    std::printf("%s, %s, products: %s; a large copy moves %.1f GB/s, a large product does %.2f TFLOP/s\n", arguments.backend.c_str(),
                std::string(to_string(options.real)).c_str(), product_library(options.backend).c_str(), roofline.bytes_per_second / 1e9,
                roofline.flops_per_second / 1e12);
    std::printf("%-26s %-30s %11s %10s %10s %10s %10s %9s  %s\n", "op", "case", "time", "bytes", "GFLOP", "GB/s", "TFLOP/s", "roofline",
                "operands");
  }
  for (const OpId op : ops) {
    const OpDef& def = table[op];
    for (const OpCase& op_case : def.cases()) {
      GLIM_ASSIGN(const std::optional<OpTiming> timing, time_case(table, op, op_case, options));
      if (!timing) continue;
      const Cost& cost = timing->cost;
      const double bytes = cost.bytes_read + cost.bytes_written, percent = 100 * roofline.seconds(cost) / timing->seconds;
      report["cases"].push_back({{"op", def.name},
                                 {"case", op_case.name},
                                 {"operands", timing->shapes},
                                 {"seconds", timing->seconds},
                                 {"bytes", bytes},
                                 {"flops", cost.flops},
                                 {"percent_of_roofline", percent}});
      if (arguments.json) continue;
      std::printf("%-26s %-30s %11s %10s %10.3f %10.1f %10.3f %7.1f %%  %s\n", std::string(def.name).c_str(), op_case.name.c_str(),
                  in_time(timing->seconds).c_str(), in_bytes(bytes).c_str(), cost.flops / 1e9, bytes / timing->seconds / 1e9,
                  cost.flops / timing->seconds / 1e12, percent, timing->shapes.c_str());
      std::fflush(stdout);
    }
  }
  if (arguments.json) std::printf("%s\n", report.dump(1).c_str());
  return ok();
}

}  // namespace

void add_bench_ops(CLI::App& bench, Body& body) {
  auto arguments = std::make_shared<Arguments>();
  arguments->dtype.clear();
  bench.add_option("--backend", arguments->backend, "cpu or cuda")->capture_default_str();
  bench.add_option("--op", arguments->op, "this op only")->type_name("NAME");
  bench.add_option("--dtype", arguments->dtype, "f32, f64 or bf16 (default: f32 on the CPU, bf16 on cuda)");
  bench.add_option("--extent", arguments->extent, "extents of a case grow to this, where the op lets them (default: 512, on cuda 4096)")
      ->check(CLI::Range(1, 1 << 20));
  bench.add_option("--seconds", arguments->seconds, "a case runs at least this long")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 3600.0));
  add_threads_option(bench, arguments->threads);
  bench.add_flag("--json", arguments->json, "print one JSON object");
  bench.footer("Example: glim bench --op rms_norm --backend cuda");
  bench.callback([arguments, &bench, &body] {
    if (bench.get_subcommands().empty()) body = [arguments] { return bench_ops(*arguments); };
  });
}

}  // namespace glim::cli
