// The spike: one training step with a state update, from one plan and one schedule, on the CPU and captured as a CUDA graph.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "ops/add/add.h"
#include "ops/builtin_ops.h"
#include "ops/concat/concat.h"
#include "ops/copy/copy.h"
#include "ops/fill/fill.h"
#include "ops/linear/linear.h"
#include "ops/matmul/matmul.h"
#include "ops/mul/mul.h"
#include "ops/scale/scale.h"
#include "ops/sigmoid/sigmoid.h"
#include "ops/slice/slice.h"
#include "runtime/device.h"
#include "tests/gpu/machines.h"

namespace glim::testing {
namespace {

constexpr SpikeSizes kModerate{256, 128, 192, 1000, 100, 0.05}, kSmall{40, 24, 20, 77, 16, 0.05},
    kLarge{4096, 1024, 1024, 32000, 1024, 0.8};
constexpr std::string_view kStates[] = {"w1", "g", "w2"};
constexpr std::string_view kReals[] = {"loss", "token_accuracy", "row_loss", "gradient.w1", "gradient.g", "gradient.w2"};
constexpr int kSteps = 1000, kEvery = 100;

#define GLIM_EXPECT_OK(expression)                         \
  do {                                                     \
    const Status glim_ok = (expression);                   \
    ASSERT_TRUE(bool(glim_ok)) << glim_ok.error().message; \
  } while (false)

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string why; !cuda_available(why)) GTEST_SKIP() << "skipped: no CUDA device (" << why << ")";
  }
};

// The NaN-poisoned arenas of both machines, one step each.
void expect_same_step(DType real, const SpikeSizes& sizes, bool joins_head, double tolerance) {
  const Spike spike = make_spike(real, sizes, joins_head);
  CpuMachine cpu(spike);
  CudaMachine gpu(spike);
  const Values values = initial_values(sizes);
  cpu.set(values);
  gpu.set(values);
  GLIM_EXPECT_OK(cpu.run());
  GLIM_EXPECT_OK(gpu.run());
  for (const std::string_view name : kReals) {
    if (name == "token_accuracy" && real == DType::kBF16) continue;  // another rounding may be another argmax
    const double error = name == "token_accuracy" && cpu.scalar(name) == 0 ? std::fabs(gpu.scalar(name))
                                                                           : relative_error(gpu.output(name), cpu.output(name));
    EXPECT_LE(error, tolerance) << name;
    std::printf("  %-15s %.2e\n", std::string(name).c_str(), error);
  }
  if (real != DType::kBF16) {
    EXPECT_EQ(gpu.output("num_correct"), cpu.output("num_correct"));
  }
  EXPECT_EQ(gpu.output("num_valid"), cpu.output("num_valid"));
  EXPECT_EQ(cpu.scalar("num_valid"),
            static_cast<double>(std::ranges::count_if(values.at("labels"), [](double label) { return label >= 0; })));
  for (const std::string_view name : kStates) {
    EXPECT_LE(relative_error(gpu.state(name), cpu.state(name)), tolerance) << name;
    EXPECT_GT(relative_error(gpu.state(name), values.at(std::string(name))), 10 * tolerance * (real == DType::kBF16 ? 0 : 1))
        << name << " was not updated";
  }
}

TEST_F(Gpu, StepInF32) { expect_same_step(DType::kF32, kModerate, true, 1e-5); }
TEST_F(Gpu, StepInF64) { expect_same_step(DType::kF64, kModerate, true, 1e-12); }
TEST_F(Gpu, StepInBf16) { expect_same_step(DType::kBF16, kModerate, true, 2e-2); }
TEST_F(Gpu, SmallStep) { expect_same_step(DType::kF32, kSmall, true, 1e-5); }  // what compute-sanitizer runs
TEST_F(Gpu, SmallStepInBf16) { expect_same_step(DType::kBF16, kSmall, true, 2e-2); }
TEST_F(Gpu, SmallStepWithTwoHeadNodes) { expect_same_step(DType::kF32, kSmall, false, 1e-5); }
TEST_F(Gpu, StepWithTwoHeadNodesInF64) { expect_same_step(DType::kF64, kModerate, false, 1e-12); }

// kSteps steps, then what every kEvery-th loss was.
std::vector<double> losses_of(Machine& machine, const Values& values) {
  machine.set(values);
  std::vector<double> losses;
  for (int step = 1; step <= kSteps; ++step) {
    const Status status = machine.run();
    EXPECT_TRUE(bool(status)) << status.error().message;
    if (!status) return losses;
    if (step % kEvery == 0) losses.push_back(machine.scalar("loss"));
  }
  return losses;
}

struct Timing {
  double host_mean, host_median, gpu;  // microseconds a replay
};

// Launches without waiting, kEvery at a time; an event on each side of a batch measures the GPU.
void replay(CudaMachine& gpu, std::vector<double>& losses, Timing& timing) {
  cudaEvent_t from = nullptr, to = nullptr;
  ASSERT_EQ(cudaEventCreate(&from), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&to), cudaSuccess);
  const auto stream = static_cast<cudaStream_t>(gpu.executor().stream());
  GLIM_EXPECT_OK(gpu.run());  // launches step by step, and captures
  size_t free_before = 0, free_after = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_before, &total), cudaSuccess);
  std::vector<double> host;
  double gpu_microseconds = 0;
  int done = 1;
  while (done < kSteps) {
    const int batch = std::min(kEvery - done % kEvery, kSteps - done);
    ASSERT_EQ(cudaEventRecord(from, stream), cudaSuccess);
    for (int k = 0; k < batch; ++k) {
      const auto start = std::chrono::steady_clock::now();
      const Status status = gpu.launch();
      host.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
      ASSERT_TRUE(bool(status)) << status.error().message;
    }
    ASSERT_EQ(cudaEventRecord(to, stream), cudaSuccess);
    GLIM_EXPECT_OK(gpu.executor().wait());
    float milliseconds = 0;
    ASSERT_EQ(cudaEventElapsedTime(&milliseconds, from, to), cudaSuccess);
    gpu_microseconds += 1e3 * static_cast<double>(milliseconds);
    done += batch;
    if (done % kEvery == 0) losses.push_back(gpu.scalar("loss"));
  }
  ASSERT_EQ(cudaMemGetInfo(&free_after, &total), cudaSuccess);
  EXPECT_EQ(free_after, free_before) << "device memory was allocated after the first step";
  double sum = 0;
  for (const double each : host) sum += each;
  timing.gpu = gpu_microseconds / static_cast<double>(host.size());
  timing.host_mean = sum / static_cast<double>(host.size());
  std::nth_element(host.begin(), host.begin() + static_cast<long>(host.size() / 2), host.end());
  timing.host_median = host[host.size() / 2];
  cudaEventDestroy(from);
  cudaEventDestroy(to);
}

void expect_same_training(DType real, double tolerance) {
  const Spike spike = make_spike(real, kModerate);
  const Values values = initial_values(kModerate);
  CpuMachine cpu(spike);
  const std::vector<double> expected = losses_of(cpu, values);
  ASSERT_EQ(expected.size(), size_t{kSteps / kEvery});
  EXPECT_LT(expected.back(), 0.9 * expected.front());  // it learns something
  std::vector<std::vector<std::byte>> states[2];
  std::vector<double> losses[2];
  for (const int repetition : {0, 1}) {
    CudaMachine gpu(spike);
    gpu.set(values);
    Timing timing{};
    replay(gpu, losses[repetition], timing);
    if (::testing::Test::HasFatalFailure()) return;
    for (const std::string_view name : kStates) states[repetition].push_back(gpu.state_bytes(name));
    std::printf("  replay: host %.1f us (median %.1f), GPU %.1f us, %.2f TFLOP/s\n", timing.host_mean, timing.host_median, timing.gpu,
                spike.flops / timing.gpu * 1e-6);
    EXPECT_LT(timing.host_median, 100);
  }
  ASSERT_EQ(losses[0].size(), expected.size());
  double worst = 0;
  for (size_t k = 0; k < expected.size(); ++k) worst = std::max(worst, std::fabs(losses[0][k] - expected[k]) / expected[k]);
  std::printf("  loss %.6f -> %.6f over steps %d to %d; worst difference from the CPU %.2e\n", expected.front(), expected.back(), kEvery,
              kSteps, worst);
  EXPECT_LE(worst, tolerance);
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_TRUE(states[0] == states[1]) << "two runs of the same steps differ in bits";
}

TEST_F(Gpu, ThousandReplaysInF32) { expect_same_training(DType::kF32, 1e-4); }
TEST_F(Gpu, ThousandReplaysInF64) { expect_same_training(DType::kF64, 1e-9); }

TEST_F(Gpu, LargeStep) {
  const Values values = initial_values(kLarge);
  for (const DType real : {DType::kF32, DType::kBF16}) {
    const Spike spike = make_spike(real, kLarge);
    CudaMachine gpu(spike);
    gpu.set(values);
    GLIM_EXPECT_OK(gpu.run());
    const double first = gpu.scalar("loss");
    if (real == DType::kF32) {
      CpuMachine cpu(spike);
      cpu.set(values);
      GLIM_EXPECT_OK(cpu.run());
      for (const std::string_view name : {"loss", "row_loss", "gradient.w1", "gradient.g", "gradient.w2"}) {
        EXPECT_LE(relative_error(gpu.output(name), cpu.output(name)), 2e-5) << name;
      }
    }
    constexpr int kReplays = 20;
    const auto start = std::chrono::steady_clock::now();
    for (int k = 0; k < kReplays; ++k) GLIM_EXPECT_OK(gpu.launch());
    GLIM_EXPECT_OK(gpu.executor().wait());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kReplays;
    const double last = gpu.scalar("loss");
    std::printf("  %s: %.2f ms a step, %.1f TFLOP/s; loss %.6f -> %.6f\n", std::string(to_string(real)).c_str(), 1e3 * seconds,
                spike.flops / seconds * 1e-12, first, last);
    EXPECT_TRUE(std::isfinite(last));
    if (real == DType::kF32) {  // bf16 weights round such small steps away
      EXPECT_LT(last, first);
    }
  }
}

// Ops that the spike does not have, rows wider than the tensor, and steps on the communication stream.
TEST_F(Gpu, EventsJoinTheStreams) {
  OpTable table = builtin_ops();
  static OpDef exchange = table[*table.find("copy")];
  exchange.name = "toy_exchange";
  exchange.role = Role::kCollective;
  ASSERT_TRUE(bool(table.add(exchange)));
  for (const DType real : {DType::kF64, DType::kF32, DType::kBF16}) {
    const double tolerance = real == DType::kF64 ? 1e-13 : real == DType::kF32 ? 1e-5 : 2e-2;
    Graph g(table);
    const auto exchanged = [&](ValueId v) { return ops::emit_value(g, "toy_exchange", {v}); };
    const ValueId x = g.add_leaf(LeafKind::kInput, "x", {real, {300, 70}}), w = g.add_leaf(LeafKind::kParameter, "w", {real, {70, 70}});
    const ValueId bias = g.add_leaf(LeafKind::kParameter, "bias", {real, {70}});
    const ValueId y = exchanged(ops::linear(g, x, w, bias));
    const ValueId both = ops::mul(g, exchanged(ops::scale(g, y, 0.3)), ops::add(g, y, ops::fill(g, g.type(y), 1.25)));
    g.add_output("both", exchanged(both));
    g.add_output("copied", ops::copy(g, both));
    g.add_output("sum", ops::matmul(g, both, x, {true, false, false}, ops::scale(g, w, 2.0)));
    // Views into wider rows are read, and the halves of a concat are built in place: no kernel of theirs runs.
    const ValueId narrow = ops::slice(g, x, 1, 10, 40);
    const ValueId halves[] = {ops::mul(g, narrow, narrow), ops::matmul(g, x, ops::slice(g, w, 1, 3, 30))};
    g.add_output("halves", ops::concat(g, halves, 1));
    g.add_update(w, exchanged(ops::scale(g, w, 0.5)));
    const Spike spike = make_program("exchange", std::move(g));
    CpuMachine cpu(spike);
    CudaMachine gpu(spike);
    SpikeSizes sizes{300, 70, 70, 1, 1, 0};
    Values values = initial_values(sizes);
    values = {{"x", values["x"]}, {"w", values["w1"]}, {"bias", values["g"]}};
    cpu.set(values);
    gpu.set(values);
    EXPECT_GT(spike.program.schedule.num_events, 0U);
    for (int step = 0; step < 3; ++step) {  // the first run, and replays
      GLIM_EXPECT_OK(cpu.run());
      GLIM_EXPECT_OK(gpu.run());
      for (const std::string_view name : {"both", "copied", "sum", "halves"})
        EXPECT_LE(relative_error(gpu.output(name), cpu.output(name)), tolerance) << name << step;
      EXPECT_LE(relative_error(gpu.state("w"), cpu.state("w")), tolerance);
    }
  }
}

TEST(GpuCreation, MissingKernelIsAnErrorThatNamesTheOp) {
  OpTable table = builtin_ops();
  static OpDef host_only = table[*table.find("sigmoid")];
  host_only.name = "host_only";
  host_only.cuda = nullptr;
  ASSERT_TRUE(bool(table.add(host_only)));
  Graph g(table);
  g.add_output("out", ops::emit_value(g, "host_only", {g.add_leaf(LeafKind::kInput, "x", {DType::kF32, {4}})}));
  const Spike spike = make_program("forward", std::move(g));
  const Program* const programs[] = {&spike.program};
  const auto executor = CudaExecutor::create(programs);
  ASSERT_FALSE(bool(executor));
  EXPECT_NE(executor.error().message.find("'host_only' has no CUDA kernel"), std::string::npos) << executor.error().message;
}

}  // namespace
}  // namespace glim::testing
