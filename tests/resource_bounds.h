#pragma once
// How much processor time and memory a call takes: for inputs that must be refused quickly and cheaply.
#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

// Of the sanitizers' allocator; null without AddressSanitizer, and then memory is not measured.
extern "C" {
__attribute__((weak)) int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, size_t),
                                                                    void (*on_free)(const volatile void*));
__attribute__((weak)) size_t __sanitizer_get_allocated_size(const volatile void* pointer);
}

namespace glim {

inline constexpr double kMaxSeconds = 1;
inline constexpr int64_t kMaxAdditionalBytes = int64_t{64} << 20;

struct Usage {
  double seconds = 0;      // of this thread's processor time, so that other processes do not count
  int64_t peak_bytes = 0;  // most bytes asked for and not given back yet, above the start
};

// Live bytes of the whole process, and their peak. Sizes are those that were asked for.
class HeapMeter {
 public:
  static bool install() {
    static const bool kInstalled =
        __sanitizer_install_malloc_and_free_hooks != nullptr && __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free) != 0;
    return kInstalled;
  }
  static int64_t start() {
    peak_ = live_.load();
    return peak_;
  }
  static int64_t peak() { return peak_; }

 private:
  static void on_malloc(const volatile void*, size_t size) {
    const int64_t live = live_ += static_cast<int64_t>(size);
    int64_t peak = peak_;
    while (live > peak && !peak_.compare_exchange_weak(peak, live)) {
    }
  }
  static void on_free(const volatile void* pointer) {
    if (pointer != nullptr) live_ -= static_cast<int64_t>(__sanitizer_get_allocated_size(pointer));
  }
  static inline std::atomic<int64_t> live_ = 0, peak_ = 0;
};

template <class F>
Usage measure(F&& call) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const bool has_meter = HeapMeter::install();
  const int64_t bytes = HeapMeter::start();
  const double begin = now();
  call();
  return {now() - begin, has_meter ? HeapMeter::peak() - bytes : 0};
}

// What `call` returns; a failure of the test when it takes more than 1 s or 64 MiB.
template <class F>
auto bounded(F&& call) {
  std::optional<decltype(call())> result;
  const Usage usage = measure([&] { result.emplace(call()); });
  EXPECT_LT(usage.seconds, kMaxSeconds);
  EXPECT_LT(usage.peak_bytes, kMaxAdditionalBytes);
  return *std::move(result);
}

}  // namespace glim
