#pragma once
#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

#include "runtime/executable.h"
#include "runtime/thread_pool.h"

namespace glim {

// Sees each step's outputs right after it ran, before anything overwrites them.
using StepWatch = std::function<void(const BoundStep& step, std::span<const TensorView> outputs)>;

// Runs programs on the CPU: one step after the other, each on all cores. Allocates nothing while it runs (an error message aside).
class CpuExecutor final : public Executor, private KernelContext {
 public:
  explicit CpuExecutor(int num_threads = 0) : pool_(num_threads) {}
  Status run(const Executable& executable) override;
  // `to` = `from`, of one type; either may have wide rows.
  void copy(const TensorView& from, const TensorView& to);

  // Seconds per step of the executable that ran last are added up here while profiling is on.
  void set_profile(std::vector<double>* seconds_per_step) { profile_ = seconds_per_step; }
  void set_watch(const StepWatch* watch) { watch_ = watch; }
  // While the flag is set, run() ends with kCancelled before its next step. Null: never.
  void set_cancellation(const std::atomic<bool>* flag) { cancellation_ = flag; }
  [[nodiscard]] ThreadPool& pool() { return pool_; }

 private:
  void parallel_for(int64_t num_tasks, FunctionRef<void(int64_t)> task) override { pool_.parallel_for(num_tasks, task); }
  void fail(std::string message) override;

  ThreadPool pool_;
  std::vector<double>* profile_ = nullptr;
  const StepWatch* watch_ = nullptr;
  const std::atomic<bool>* cancellation_ = nullptr;
  std::mutex failure_mutex_;
  bool has_failed_ = false;
  std::string failure_;
};

}  // namespace glim
