#pragma once
// How fast single ops run on a machine, beside what it can do at best.
#include <functional>
#include <optional>
#include <string>

#include "runtime/backend.h"

namespace glim {

struct OpBenchOptions {
  Backend backend = Backend::kCpu;
  DType real = DType::kF32;
  // Every extent of a case that the op's types let grow becomes this one. 0: 4096 on cuda, 512 on the CPU.
  int64_t extent = 0;
  double seconds = 0.02;  // that a case runs for, at least
  int num_threads = 0;
};

// What a large copy (read + write) and a large product in that dtype reach.
struct Roofline {
  double bytes_per_second = 0, flops_per_second = 0;
  // The least time for a cost: of bytes or of FLOPs, whichever takes longer.
  [[nodiscard]] double seconds(const Cost& cost) const {
    return std::max((cost.bytes_read + cost.bytes_written) / bytes_per_second, cost.flops / flops_per_second);
  }
};
Result<Roofline> measure_roofline(const OpTable& table, const OpBenchOptions& options);

struct OpTiming {
  std::string shapes;  // of the operands: "[4096, 512] [512]"
  Cost cost;
  double seconds = 0;  // of one run, back to back with others
};
// The case with its extents grown. Runs of it rotate over copies of all operands and outputs that together are larger than the
// last cache, unless a few copies are not. Nothing for a case that no kernel runs for (a view), or that the dtype does not fit.
Result<std::optional<OpTiming>> time_case(const OpTable& table, OpId op, const OpCase& op_case, const OpBenchOptions& options);

// The case with every extent set to `extent`, wherever it occurs, as far as the op's types allow; the number of segments stays.
[[nodiscard]] OpCase grown(const OpDef& def, const OpCase& op_case, DType real, int64_t extent);

}  // namespace glim
