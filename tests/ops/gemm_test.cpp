// The product behind linear, matmul, attention and the head: every transpose, strides, accumulation, thread counts, no allocation.
#include "ops/gemm.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>

#include "ops/bf16.h"
#include "ops/vector_math.h"
#include "tests/ops/case_inputs.h"

// Counts heap allocations, of whatever library multiplies too.
static std::atomic<int64_t> num_allocations{0};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*, size_t),
                                                         void (*free_hook)(const volatile void*));
static const int hooks_installed =
    __sanitizer_install_malloc_and_free_hooks([](const volatile void*, size_t) { ++num_allocations; }, [](const volatile void*) {});
#else
extern "C" void* __libc_malloc(size_t size);
extern "C" void* malloc(size_t size) {
  ++num_allocations;
  return __libc_malloc(size);
}
#endif

namespace glim {
namespace {

using cpu::Into;
using cpu::Matrix;

class SerialContext final : public KernelContext {
 public:
  void parallel_for(int64_t num_tasks, FunctionRef<void(int64_t)> task) override {
    for (int64_t i = 0; i < num_tasks; ++i) task(i);
  }
  void fail(std::string) override {}
};

template <class T>
std::vector<T> random_elements(int64_t count, uint64_t seed) {
  std::vector<T> out;
  for (const double v : testing::random_normal(count, seed)) out.push_back(T(static_cast<float>(v)));
  return out;
}

// Every transpose with padded rows against a triple loop; tolerance relative to sqrt(k).
template <class A, class B, class C>
void check(int64_t m, int64_t n, int64_t k, double tolerance) {
  for (int variant = 0; variant < 8; ++variant) {
    const bool ta = variant & 1, tb = variant & 2, add = variant & 4;
    const int64_t stride_a = (ta ? m : k) + 3, stride_b = (tb ? k : n) + 2, stride_c = n + 5;
    const auto a = random_elements<A>((ta ? k : m) * stride_a, 1);
    const auto b = random_elements<B>((tb ? n : k) * stride_b, 2);
    const auto before = random_elements<C>(m * stride_c, 3);
    auto c = before;
    SerialContext context;
    cpu::gemm<A, B, C>(context, m, n, k, 0.5, {a.data(), stride_a, ta}, {b.data(), stride_b, tb}, c.data(), stride_c,
                       add ? Into::kAdd : Into::kOverwrite);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < stride_c; ++j) {
        const auto at = static_cast<size_t>(i * stride_c + j);
        double sum = 0;
        for (int64_t l = 0; j < n && l < k; ++l) {
          sum += static_cast<double>(a[static_cast<size_t>(ta ? l * stride_a + i : i * stride_a + l)]) *
                 static_cast<double>(b[static_cast<size_t>(tb ? j * stride_b + l : l * stride_b + j)]);
        }
        const double expected = j >= n ? static_cast<double>(before[at]) : 0.5 * sum + (add ? static_cast<double>(before[at]) : 0);
        ASSERT_NEAR(static_cast<double>(c[at]), expected,
                    j >= n ? 0 : tolerance * std::max(std::sqrt(static_cast<double>(k + 1)), std::fabs(expected)))
            << "variant " << variant << " at " << i << ", " << j;
      }
    }
  }
}

TEST(Gemm, EveryTransposeStrideAndTypeMatchesATripleLoop) {
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{1, 1, 1}, {5, 7, 3}, {1, 300, 17}, {130, 1, 9}, {129, 257, 40}, {3, 4, 1030}, {4, 5, 0}, {270, 20, 260}}) {
    check<double, double, double>(m, n, k, 1e-14);
    check<float, float, float>(m, n, k, 1e-5);
    check<Bf16, Bf16, Bf16>(m, n, k, 1.0 / 256);
    check<Bf16, Bf16, float>(m, n, k, 1e-5);
    check<float, Bf16, Bf16>(m, n, k, 1.0 / 256);
    check<float, Bf16, float>(m, n, k, 1e-5);
  }
}

template <class T>
void expect_same_bits_on_threads() {
  const int64_t m = 300, n = 530, k = 700;
  const auto a = random_elements<T>(m * k, 4);
  const auto b = random_elements<T>(k * n, 5);
  std::vector<std::vector<T>> results;
  for (const int threads : {1, 2, 3, 3}) {
    std::vector<T> c(static_cast<size_t>(m * n));
    testing::TestContext context(threads);
    cpu::gemm<T, T, T>(context, m, n, k, 1, {a.data(), k}, {b.data(), n}, c.data(), n, Into::kOverwrite);
    results.push_back(c);
  }
  for (const auto& each : results) EXPECT_EQ(std::memcmp(results[0].data(), each.data(), each.size() * sizeof(T)), 0);
}
TEST(Gemm, BitsDoNotDependOnTheNumberOfThreads) {
  expect_same_bits_on_threads<float>();
  expect_same_bits_on_threads<double>();
  expect_same_bits_on_threads<Bf16>();
}

template <class A, class B, class C>
int64_t allocations_of(int64_t m, int64_t n, int64_t k) {
  int64_t before = 0, total = 0;
  const auto a = random_elements<A>(m * k, 4);
  const auto b = random_elements<B>(k * n, 5);
  std::vector<C> c(static_cast<size_t>(m * n));
  SerialContext context;
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      before = num_allocations;
      cpu::gemm<A, B, C>(context, m, n, k, 0.5, {a.data(), ta ? m : k, ta}, {b.data(), tb ? k : n, tb}, c.data(), n, Into::kAdd);
      total += num_allocations - before;
    }
  }
  return total;
}
TEST(Gemm, AllocatesNothing) {
  const int64_t before = num_allocations;
  void* volatile kept = std::malloc(1000);  // volatile: the compiler may leave out a pair that nobody looks at
  std::free(kept);
  ASSERT_GT(num_allocations, before) << "the hook does not count";
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{130, 260, 1030}, {1, 600, 1030}, {600, 1, 1030}, {6, 6, 6}}) {
    EXPECT_EQ((allocations_of<double, double, double>(m, n, k)), 0);
    EXPECT_EQ((allocations_of<float, float, float>(m, n, k)), 0);
    EXPECT_EQ((allocations_of<Bf16, Bf16, Bf16>(m, n, k)), 0);
    EXPECT_EQ((allocations_of<float, Bf16, float>(m, n, k)), 0);
  }
}

TEST(VectorMath, ExpAndTanhAreCloseAndPassSpecialValuesThrough) {
  for (double x = -700; x < 700; x += 0.37) EXPECT_NEAR(cpu::fast_exp(x) / std::exp(x), 1, 2e-15) << x;
  for (float x = -86; x < 87; x += 0.0371F) EXPECT_NEAR(cpu::fast_exp(x) / std::exp(x), 1, 4e-7) << x;
  for (float x = -12; x < 12; x += 0.0123F) EXPECT_NEAR(cpu::fast_tanh(x), std::tanh(x), 3e-7 * std::fabs(std::tanh(x)) + 1e-12) << x;
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(cpu::fast_exp(-infinity), 0);
  EXPECT_EQ(cpu::fast_exp(infinity), infinity);
  EXPECT_TRUE(std::isnan(cpu::fast_exp(std::nanf(""))) && std::isnan(cpu::fast_exp(std::nan(""))) &&
              std::isnan(cpu::fast_tanh(std::nanf(""))));
  EXPECT_EQ(cpu::fast_tanh(infinity), 1);
  EXPECT_EQ(cpu::fast_exp(0.0F), 1);
}

}  // namespace
}  // namespace glim
