// Attention on the GPU against the CPU op in f64, on the same rounded inputs; what must not depend on anything; and how fast it is.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "ops/attention/attention.h"
#include "runtime/cudnn/attention.h"
#include "runtime/cudnn/library.h"
#include "tests/gpu/attention_problem.h"

namespace glim::testing {
namespace {

// The largest error seen, by its bound.
std::map<double, double>& largest_errors() {
  static std::map<double, double> errors;
  return errors;
}

class GpuAttention : public ::testing::Test {
 protected:
  static void TearDownTestSuite() {
    for (const auto& [bound, error] : largest_errors()) std::printf("largest error under the bound of %.0e: %.1e\n", bound, error);
  }
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "skipped: no CUDA device";
  }
};

constexpr DType kDTypes[] = {DType::kF64, DType::kF32, DType::kBF16};
double tolerance_of(DType dtype) { return dtype == DType::kF64 ? 1e-12 : dtype == DType::kF32 ? 5e-6 : 1e-2; }

// Errors are relative to the norm of the tensor, except where what is subtracted in it cancels: with one key in sight, ct_q and ct_k are 0.
void expect_close(const AttentionValues& a, const AttentionValues& expected, double tolerance) {
  const auto error = [&](const Values& x, const Values& y, double least) {
    double difference = 0, norm = 0;
    EXPECT_EQ(x.size(), y.size());
    for (size_t i = 0; i < y.size(); ++i) {
      difference += (x[i] - y[i]) * (x[i] - y[i]);
      norm += y[i] * y[i];
    }
    const double relative = std::sqrt(difference) / std::max({std::sqrt(norm), least, 1e-30});
    double& largest = largest_errors()[tolerance];
    largest = std::max(largest, relative);
    return std::isfinite(relative) ? relative : 1e30;
  };
  double size = 0;
  for (const double x : expected.ct_v) size += x * x;
  const double cancelled = 0.05 * std::sqrt(size);
  EXPECT_LE(error(a.out, expected.out, 0), tolerance);
  EXPECT_LE(error(a.lse, expected.lse, 0), tolerance);
  EXPECT_LE(error(a.ct_v, expected.ct_v, 0), tolerance);
  EXPECT_LE(error(a.ct_q, expected.ct_q, cancelled), tolerance);
  EXPECT_LE(error(a.ct_k, expected.ct_k, cancelled), tolerance);
}

void expect_same_as_cpu(const AttentionProblem& problem) {
  for (const DType dtype : kDTypes) {
    const AttentionInputs inputs(problem, dtype);
    const AttentionValues expected = run_on_cpu(problem, inputs);
    for (const int margin : {8, 3}) {  // rows of 16 aligned bytes, or of an odd number of elements
      SCOPED_TRACE(fmt::format("{} {}, margin {}", to_string(dtype), problem.name(), margin));
      CudaAttention gpu(problem, dtype, inputs, margin);
      gpu.run();
      expect_close(gpu.values(), expected, tolerance_of(dtype));
      EXPECT_TRUE(gpu.margins_intact());
    }
  }
}

TEST_F(GpuAttention, SmallCases) {  // what compute-sanitizer runs
  expect_same_as_cpu({70, 128, {4, 2, 1, 20, 0.09}, {2, 40, 40, 41, 66}});
  expect_same_as_cpu({140, 20, {4, 1, 1, 0, 0.2}, {0, 139}});
  expect_same_as_cpu({70, 64, {2, 2, 0, 0, 0.13}, {0, 30, 66}});
}

TEST_F(GpuAttention, EveryHeadSize) {
  for (const int64_t d : {1, 4, 5, 8, 12, 20, 32, 64, 72, 80, 96, 128, 160, 256}) {
    for (const bool causal : {true, false})
      expect_same_as_cpu({200, d, {2, 1, causal, 0, 1 / std::sqrt(static_cast<double>(d))}, {3, 70, 70, 71, 190}});
  }
}

TEST_F(GpuAttention, EveryWindow) {
  for (const int64_t window : {1, 2, 63, 64, 65, 127, 128, 129, 1000}) {
    for (const bool causal : {true, false}) expect_same_as_cpu({400, 32, {4, 2, causal, window, 0.18}, {0, 260, 400}});
  }
}

TEST_F(GpuAttention, EveryGroup) {
  for (const int64_t group : {1, 2, 3, 8, 16}) {
    expect_same_as_cpu({330, 128, {group * 2, 2, 1, 0, 0.09}, {0, 1, 1, 130, 131, 290}});
    expect_same_as_cpu({140, 16, {group, 1, 1, 50, 0.25}, {0, 140}});
  }
}

TEST_F(GpuAttention, ManyTiles) {
  expect_same_as_cpu({1100, 128, {2, 1, 1, 0, 0.09}, {0, 1100}});
  expect_same_as_cpu({1100, 128, {2, 1, 1, 300, 0.09}, {0, 1000}});
  expect_same_as_cpu({1030, 96, {2, 2, 0, 0, 0.1}, {0, 1030}});
  expect_same_as_cpu({1030, 64, {3, 1, 0, 257, 0.12}, {0, 900, 1030}});
}

TEST_F(GpuAttention, SegmentsOfEverySize) {
  AttentionProblem problem{600, 64, {4, 2, 1, 0, 0.12}, {0}};
  for (int length = 0; problem.segments.back() + length <= 590; ++length) problem.segments.push_back(problem.segments.back() + length);
  expect_same_as_cpu(problem);
  problem.segments.assign(601, 0);  // all of one row
  for (size_t i = 0; i < problem.segments.size(); ++i) problem.segments[i] = static_cast<int32_t>(i);
  expect_same_as_cpu(problem);
  problem.segments = {0};  // none
  expect_same_as_cpu(problem);
  problem.segments = {0, 0, 0};
  expect_same_as_cpu(problem);
}

TEST_F(GpuAttention, OtherScales) {  // not above 0: not on tensor cores
  for (const double scale : {-0.2, 0.0}) expect_same_as_cpu({150, 32, {2, 1, 1, 0, scale}, {0, 150}});
}

TEST_F(GpuAttention, LargeLogits) {  // of +-80 and more
  for (const DType dtype : kDTypes) {
    SCOPED_TRACE(to_string(dtype));
    AttentionProblem problem{300, 64, {2, 1, 1, 0, 10}, {0, 300}};
    AttentionInputs inputs(problem, dtype);
    const AttentionValues expected = run_on_cpu(problem, inputs);
    EXPECT_GT(*std::max_element(expected.lse.begin(), expected.lse.end()), 160);
    CudaAttention gpu(problem, dtype, inputs, 8);
    gpu.run();
    // Powers of differences of such logits keep fewer digits.
    expect_close(gpu.values(), expected, dtype == DType::kF64 ? 1e-10 : dtype == DType::kF32 ? 2e-4 : 5e-2);
  }
}

TEST_F(GpuAttention, SameBitsWhateverTheMemoryHeld) {
  for (const DType dtype : kDTypes) {
    for (const AttentionProblem& problem :
         {AttentionProblem{700, 128, {16, 1, 1, 200, 0.09}, {0, 300, 690}}, AttentionProblem{500, 80, {2, 2, 0, 0, 0.1}, {0, 500}}}) {
      const AttentionInputs inputs(problem, dtype);
      CudaAttention gpu(problem, dtype, inputs, 8), other(problem, dtype, inputs, 8);
      gpu.run();
      const auto first = gpu.bits();
      EXPECT_EQ(first.size(), 5U);
      gpu.poison_outputs(0x3f);
      gpu.run();
      EXPECT_EQ(gpu.bits(), first);
      other.run();
      EXPECT_EQ(other.bits(), first);
    }
  }
}

TEST_F(GpuAttention, NaNIsNotHidden) {
  for (const DType dtype : kDTypes) {
    const AttentionProblem problem{6, 4, {1, 1, 1, 0, 0.5}, {0, 6}};
    AttentionInputs inputs(problem, dtype);
    inputs.k[4] = std::nan("");  // of row 1
    CudaAttention gpu(problem, dtype, inputs, 8);
    gpu.run();
    const Values out = gpu.values().out;
    EXPECT_FALSE(std::isnan(out[0]));
    EXPECT_TRUE(std::isnan(out[4]) && std::isnan(out[20]));
  }
}

// A document's neighbours do not change its bits.
TEST_F(GpuAttention, PackedDocumentsDoNotSeeEachOther) {
  for (const DType dtype : kDTypes) {
    const AttentionProblem problem{300, 64, {4, 2, 1, 90, 0.12}, {0, 75, 101, 300}};
    AttentionInputs inputs(problem, dtype);
    CudaAttention gpu(problem, dtype, inputs, 8);
    gpu.run();
    for (Values* values : {&inputs.q, &inputs.k, &inputs.v, &inputs.ct}) {
      const size_t width = values->size() / 300;
      for (size_t i = 75 * width; i < 101 * width; ++i) (*values)[i] += 1;
    }
    CudaAttention changed(problem, dtype, inputs, 8);
    changed.run();
    const auto before = gpu.bits(), after = changed.bits();
    for (size_t k = 0; k < before.size(); ++k) {
      const auto row = static_cast<ptrdiff_t>(before[k].size() / 300);
      EXPECT_TRUE(std::equal(before[k].begin(), before[k].begin() + 75 * row, after[k].begin()));
      EXPECT_TRUE(std::equal(before[k].begin() + 101 * row, before[k].end(), after[k].begin() + 101 * row));
      EXPECT_NE(before[k], after[k]);
    }
  }
}

class GpuAttentionLibrary : public GpuAttention {
 protected:
  void SetUp() override {
    GpuAttention::SetUp();
    if (IsSkipped()) return;
    if (!the_cudnn()) GTEST_SKIP() << "skipped: " << the_cudnn().error().message;
    // Whatever cuDNN says of other shapes: one that it has always served.
    CudnnProblem usual{CudnnPass::kForward, 256, 1, 128, 2, 1, 0, true, 0.1, {256, 128, 128, 256, 2}};
    const auto graph = CudnnGraph::create(usual);
    if (!graph) GTEST_SKIP() << "skipped: " << graph.error().message;
  }
};

// The library against the CPU, where it serves; replayed, the same bits; with another segment table of as many segments, in the same plan.
void expect_library_serves(const AttentionProblem& problem, int num_passes) {
  SCOPED_TRACE(problem.name());
  const AttentionInputs inputs(problem, DType::kBF16);
  CudaAttention gpu(problem, DType::kBF16, inputs, 8, AttentionServer::kLibrary);
  gpu.run();
  EXPECT_EQ(gpu.num_served(), num_passes);
  for (const std::string& note : take_attention_notes()) std::printf("  %s\n", note.c_str());
  const AttentionValues expected = run_on_cpu(problem, inputs);
  expect_close(gpu.values(), expected, tolerance_of(DType::kBF16));
  EXPECT_TRUE(gpu.margins_intact());
  const auto first = gpu.bits();
  for (const int byte : {0x3f, 0xff}) {
    gpu.poison_outputs(byte);
    gpu.replay();
    EXPECT_EQ(gpu.bits(), first);
  }
}

TEST_F(GpuAttentionLibrary, ServesWhatModelsAsk) {
  expect_library_serves({512, 128, {4, 2, 1, 0, 0.09}, {0, 512}}, 2);
  expect_library_serves({512, 128, {16, 1, 1, 100, 0.09}, {0, 512}}, 2);
  expect_library_serves({700, 128, {4, 2, 1, 0, 0.09}, {0, 300, 301, 700, 700}}, 2);
  expect_library_serves({700, 64, {4, 2, 1, 130, 0.12}, {0, 300, 420, 700}}, 2);
  expect_library_serves({333, 96, {2, 2, 0, 0, 0.1}, {0, 130, 333}}, 2);
  expect_library_serves({512, 128, {4, 2, 1, 0, 0.09}, {20, 300, 490}}, 2);  // rows outside, which hold NaN
}

TEST_F(GpuAttentionLibrary, OwnKernelsServeTheRest) {
  expect_library_serves({200, 20, {4, 2, 1, 0, 0.2}, {0, 200}}, 0);
  expect_library_serves({150, 32, {2, 1, 1, 0, -0.2}, {0, 150}}, 0);
}

TEST_F(GpuAttentionLibrary, OnePlanForEverySegmentTable) {
  AttentionProblem problem{600, 128, {4, 2, 1, 0, 0.09}, {0, 200, 600}};
  const AttentionInputs inputs(problem, DType::kBF16);
  CudaAttention gpu(problem, DType::kBF16, inputs, 8, AttentionServer::kLibrary);
  gpu.run();
  problem.segments = {0, 431, 600};
  gpu.set_segments(problem.segments);
  gpu.replay();
  expect_close(gpu.values(), run_on_cpu(problem, inputs), tolerance_of(DType::kBF16));
}

// The released sizes: tensor cores against f32 on CUDA cores, and times that attention_peers.py sets beside torch's.
TEST_F(GpuAttention, ReleasedSizes) {
  struct Case {
    std::string_view name;
    int64_t rows, window;
    std::vector<int32_t> segments;
    bool compares;
  };
  const Case cases[] = {{"full", 8192, 0, {0, 8192}, true},
                        {"window 2048", 8192, 2048, {0, 8192}, true},
                        {"4 documents", 8192, 0, {0, 2048, 4096, 6144, 8192}, false},
                        {"full 32k", 32768, 0, {0, 32768}, false},
                        {"window 2048, 32k", 32768, 2048, {0, 32768}, false}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const AttentionProblem problem{c.rows, 128, {32, 2, 1, c.window, 1 / std::sqrt(128.0)}, c.segments};
    const AttentionInputs inputs(problem, DType::kBF16);
    CudaAttention gpu(problem, DType::kBF16, inputs, 4096);  // beside a gate of the width of q
    const auto [forward, backward] = gpu.times(c.rows > 8192 ? 5 : 20);
    std::printf("attention-time|%s|%.4f|%.4f|%.6e\n", std::string(c.name).c_str(), forward, backward, problem.num_pairs());
    if (the_cudnn()) {
      CudaAttention library(problem, DType::kBF16, inputs, 4096, AttentionServer::kLibrary);
      library.run();
      const int served = library.num_served();
      const auto [library_forward, library_backward] = library.times(c.rows > 8192 ? 5 : 20);
      std::printf("attention-library-time|%s|%.4f|%.4f|%d of 2 by cuDNN, forward, backward: %.2f, %.2f x the speed of the own kernels\n",
                  std::string(c.name).c_str(), library_forward, library_backward, served, forward / library_forward,
                  backward / library_backward);
      for (const std::string& note : take_attention_notes()) std::printf("  %s\n", note.c_str());
      expect_close(library.values(), gpu.values(), 1e-2);
    }
    if (!c.compares) continue;
    CudaAttention plain(problem, DType::kF32, inputs, 8);
    const auto [plain_forward, plain_backward] = plain.times(2);
    std::printf("  in f32 on CUDA cores: %.1f and %.1f ms\n", plain_forward, plain_backward);
    expect_close(gpu.values(), plain.values(), 1e-2);
  }
}

}  // namespace
}  // namespace glim::testing
