#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include <pthread.h>

#include "ops/kernel_context.h"

namespace glim {

// A fixed set of threads that run the tasks of one parallel_for at a time; the caller works too. No allocation per call.
// Stacks are 16 MiB: matrix products pack their tiles there.
class ThreadPool {
 public:
  // `num_threads` counts the caller; 0 = GLIM_NUM_THREADS if set, otherwise every core that this process may use.
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Calls task(i) for every i in [0, num_tasks). A call from inside a task runs its tasks one after another.
  void parallel_for(int64_t num_tasks, FunctionRef<void(int64_t)> task);
  [[nodiscard]] int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

 private:
  static void* thread_main(void* pool);
  void work();
  void run_tasks();

  std::vector<pthread_t> threads_;
  const FunctionRef<void(int64_t)>* task_ = nullptr;
  int64_t num_tasks_ = 0;
  std::atomic<int64_t> next_task_{0};
  std::atomic<uint32_t> generation_{0};  // bumped when there is work, or when the pool ends
  std::atomic<uint32_t> num_busy_{0};    // threads that have not finished the current generation
  std::atomic<bool> stop_{false};
};

// Calls f(i) for every i in [0, count), in parallel.
template <class F>
void for_elements(ThreadPool& pool, int64_t count, F&& f) {
  constexpr int64_t kPerTask = 65536;
  pool.parallel_for((count + kPerTask - 1) / kPerTask, [&](int64_t task) {
    for (int64_t i = task * kPerTask; i < std::min(count, (task + 1) * kPerTask); ++i) f(i);
  });
}

}  // namespace glim
