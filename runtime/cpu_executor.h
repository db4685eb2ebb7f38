#pragma once
#include <mutex>

#include "runtime/executable.h"

namespace glim {

// Runs programs on the CPU: one step after the other, each on all cores. Allocates nothing while it runs (an error message aside).
class CpuExecutor final : public Executor, private KernelContext {
 public:
  explicit CpuExecutor(int num_threads = 0) : Executor(num_threads) {}
  Status run(const Executable& executable) override;
  Status run_step(const Executable& executable, size_t index) override;
  Result<double> time(const Executable& executable, int count) override;
  Status write(const TensorView& to, std::span<const std::byte> from) override;
  Status clear(const TensorView& view) override;
  Status read(const TensorView& from, std::span<std::byte> to) override;

 private:
  void parallel_for(int64_t num_tasks, FunctionRef<void(int64_t)> task) override { pool_.parallel_for(num_tasks, task); }
  void fail(std::string message) override;
  // `to` = `from`, of one type; either may have wide rows.
  void copy(const TensorView& from, const TensorView& to);
  void issue(const Executable& executable, const BoundStep& step);
  Status end(const Executable& executable, NodeId failed_at);

  std::mutex failure_mutex_;
  bool has_failed_ = false;
  std::string failure_;
};

}  // namespace glim
