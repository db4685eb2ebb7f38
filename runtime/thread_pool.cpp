#include "runtime/thread_pool.h"

#include <sched.h>

#include <cstdlib>

#include "engine/error.h"

namespace glim {
namespace {

constexpr size_t kStackBytes = size_t{16} << 20;
constexpr int kSpins = 2000;  // about 10 microseconds: steps follow each other faster than a sleeping thread wakes up
thread_local bool is_in_task = false;

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

int choose_num_threads(int asked) {
  if (asked > 0) return asked;
  if (const char* text = std::getenv("GLIM_NUM_THREADS"); text != nullptr) {
    const long value = std::strtol(text, nullptr, 10);
    if (value >= 1 && value <= 1024) return static_cast<int>(value);
  }
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  return sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  const int extra = choose_num_threads(num_threads) - 1;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  for (int k = 0; k < extra; ++k) {
    pthread_t thread{};
    if (pthread_create(&thread, &attributes, thread_main, this) != 0) break;  // fewer threads give the same results
    threads_.push_back(thread);
  }
  pthread_attr_destroy(&attributes);
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  generation_.fetch_add(1);
  generation_.notify_all();
  for (const pthread_t thread : threads_) pthread_join(thread, nullptr);
}

void* ThreadPool::thread_main(void* pool) {
  static_cast<ThreadPool*>(pool)->work();
  return nullptr;
}

void ThreadPool::run_tasks() {
  is_in_task = true;
  for (int64_t task = next_task_.fetch_add(1); task < num_tasks_; task = next_task_.fetch_add(1)) (*task_)(task);
  is_in_task = false;
}

void ThreadPool::work() {
  uint32_t seen = 0;
  for (;;) {
    uint32_t now = generation_.load(std::memory_order_acquire);
    for (int spin = 0; now == seen && spin < kSpins; ++spin) {
      pause_core();
      now = generation_.load(std::memory_order_acquire);
    }
    while (now == seen) {
      generation_.wait(seen);
      now = generation_.load(std::memory_order_acquire);
    }
    if (stop_) return;
    seen = now;
    run_tasks();
    if (num_busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) num_busy_.notify_one();
  }
}

void ThreadPool::parallel_for(int64_t num_tasks, FunctionRef<void(int64_t)> task) {
  if (num_tasks <= 1 || threads_.empty() || is_in_task) {
    for (int64_t k = 0; k < num_tasks; ++k) task(k);
    return;
  }
  task_ = &task;
  num_tasks_ = num_tasks;
  next_task_.store(0, std::memory_order_relaxed);
  num_busy_.store(static_cast<uint32_t>(threads_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_acq_rel);
  generation_.notify_all();
  run_tasks();
  uint32_t busy = num_busy_.load(std::memory_order_acquire);
  for (int spin = 0; busy != 0 && spin < kSpins; ++spin) {
    pause_core();
    busy = num_busy_.load(std::memory_order_acquire);
  }
  while (busy != 0) {
    num_busy_.wait(busy);
    busy = num_busy_.load(std::memory_order_acquire);
  }
}

}  // namespace glim
