// The head on the device: replays of one captured step with labels that change, and what ignored labels save.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "runtime/device.h"
#include "tests/gpu/machines.h"

namespace glim::testing {
namespace {

class GpuHead : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string why; !cuda_available(why)) GTEST_SKIP() << "skipped: no CUDA device (" << why << ")";
  }
};

// Every `each`-th row has a label (0: none has), and no row before `first`.
std::vector<double> labels_in(const SpikeSizes& sizes, int64_t each, int64_t first = 0) {
  std::vector<double> labels;
  for (int64_t row = 0; row < sizes.rows; ++row)
    labels.push_back(each > 0 && row >= first && row % each == 0 ? static_cast<double>(row * 31 % sizes.vocabulary) : -100);
  return labels;
}

// The step is captured once; whatever the labels are then, it computes what the CPU computes, although it skips chunks.
TEST_F(GpuHead, SmallReplaysWithOtherLabels) {
  const SpikeSizes sizes{40, 24, 20, 76, 16, 0.05};
  for (const DType real : {DType::kF64, DType::kF32}) {
    for (const bool joins_head : {true, false}) {
      const Spike spike = make_spike(real, sizes, joins_head);
      CpuMachine cpu(spike);
      CudaMachine gpu(spike);
      const Values values = initial_values(sizes);
      cpu.set(values);
      gpu.set(values);
      ASSERT_TRUE(bool(cpu.run()) && bool(gpu.run()));
      const std::vector<std::vector<double>> rounds{labels_in(sizes, 0),     labels_in(sizes, 1), labels_in(sizes, 2),
                                                    labels_in(sizes, 1, 39), labels_in(sizes, 3), labels_in(sizes, 1, 24)};
      for (const std::vector<double>& labels : rounds) {
        const auto num_valid = std::ranges::count_if(labels, [](double label) { return label >= 0; });
        SCOPED_TRACE(fmt::format("{} {} valid of {}", to_string(real), num_valid, sizes.rows));
        cpu.set("labels", labels);
        gpu.set("labels", labels);
        ASSERT_TRUE(bool(cpu.run()) && bool(gpu.run()));
        EXPECT_EQ(gpu.scalar("num_valid"), static_cast<double>(num_valid));
        for (const std::string_view name : {"num_correct", "token_accuracy"}) EXPECT_EQ(gpu.scalar(name), cpu.scalar(name)) << name;
        for (const std::string_view name : {"loss", "row_loss", "gradient.w1", "gradient.g", "gradient.w2"}) {
          if (num_valid == 0)
            EXPECT_EQ(gpu.output(name), cpu.output(name)) << name;
          else
            EXPECT_LE(relative_error(gpu.output(name), cpu.output(name)), real == DType::kF64 ? 1e-12 : 1e-5) << name;
        }
      }
    }
  }
}

TEST_F(GpuHead, IgnoredRowsCostNothing) {
  const SpikeSizes sizes{8192, 1024, 1024, 64000, 1024, 0.01};
  const Spike spike = make_spike(DType::kBF16, sizes);
  CudaMachine gpu(spike);
  gpu.set(initial_values(sizes));
  const auto milliseconds = [&](int64_t each) {
    gpu.set("labels", labels_in(sizes, each));
    constexpr int kReplays = 20;
    for (int k = 0; k < 3; ++k) EXPECT_TRUE(bool(gpu.run()));
    const auto start = std::chrono::steady_clock::now();
    for (int k = 0; k < kReplays; ++k) EXPECT_TRUE(bool(gpu.launch()));
    EXPECT_TRUE(bool(gpu.executor().wait()));
    return 1e3 * std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kReplays;
  };
  const double all = milliseconds(1), half = milliseconds(2), eighth = milliseconds(8);
  std::printf("  a step with 8192, 4096, 1024 valid rows: %.2f, %.2f, %.2f ms\n", all, half, eighth);
  EXPECT_LT(half, 0.6 * all);
  EXPECT_LT(eighth, 0.3 * all);
}

}  // namespace
}  // namespace glim::testing
