// Whole models on the device against the same models on the CPU; training; wrong values in the data.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "autodiff/training.h"
#include "ops/embedding/embedding.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/scale/scale.h"
#include "runtime/device.h"
#include "tests/gpu/machines.h"
#include "tests/runtime/small_model.h"

namespace glim::testing {
namespace {

class GpuModel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string why; !cuda_available(why)) GTEST_SKIP() << "skipped: no CUDA device (" << why << ")";
  }
};

constexpr int64_t kTokens = 96;
SmallOptions training_options(DType real, Backend backend) {
  return {.tokens = kTokens,
          .segments = 4,
          .programs = {ProgramKind::kForward, ProgramKind::kFirst, ProgramKind::kNext, ProgramKind::kUpdate},
          .denominator = true,
          .real = real,
          .backend = backend};
}

// Two micro-steps and an update, `steps` times. Returns the losses.
std::vector<double> train(SmallModel& small, int steps) {
  Model& model = small.model();
  EXPECT_TRUE(model.reset_optimizer());
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    EXPECT_TRUE(model.set_scalar("denominator", 2 * (kTokens - 3)));
    EXPECT_TRUE(model.set_scalar(kLearningRateName, 1e-3));
    double loss = 0;
    for (const ProgramKind kind : {ProgramKind::kFirst, ProgramKind::kNext}) {
      const std::vector<int32_t> tokens = random_tokens(kTokens, 37, static_cast<uint64_t>(kind == ProgramKind::kFirst ? 1 : 2));
      small.run(kind, {{"tokens", tokens}, {"labels", tokens}, {"row_lengths", {40, 1, 55}}});
      loss += small.scalar("loss");
    }
    losses.push_back(loss);
    EXPECT_TRUE(model.run(ProgramKind::kUpdate));
    EXPECT_EQ(*model.scalar(ProgramKind::kUpdate, "finite"), 1);
  }
  return losses;
}

std::map<std::string, std::vector<double>> states(SmallModel& small) {
  std::map<std::string, std::vector<double>> all;
  for (const auto& [name, slot] : small.model().compiled().layout.slots()) {
    if (slot.arena != Arena::kParameters && slot.arena != Arena::kOptimizer) continue;
    const Result<HostTensor> tensor = small.model().state(name);
    EXPECT_TRUE(tensor) << name;
    if (tensor) all[name] = as_doubles(*tensor);
  }
  return all;
}

// Over all gradients together.
double gradient_distance(const SmallModel& found, const std::map<std::string, std::vector<double>>& expected) {
  std::vector<double> a, b;
  for (const auto& [name, values] : found.gradients()) a.insert(a.end(), values.begin(), values.end());
  for (const auto& [name, values] : expected) b.insert(b.end(), values.begin(), values.end());
  return relative_distance(a, b);
}

TEST_F(GpuModel, TrainsAsOnTheCpu) {
  constexpr double kLossBounds[] = {1e-10, 1e-3, 1e-2};  // AdamW turns the rounding of tiny gradients into steps
  std::map<std::string, std::vector<double>> exact;      // gradients of the first micro-step in f64
  for (const DType real : {DType::kF64, DType::kF32, DType::kBF16}) {
    SmallModel cpu(small_spec(), training_options(real, Backend::kCpu)), gpu(small_spec(), training_options(real, Backend::kCuda));
    const std::vector<int32_t> tokens = random_tokens(kTokens, 37, 5);
    for (SmallModel* each : {&cpu, &gpu}) {
      EXPECT_TRUE(each->model().initialise(7));  // better conditioned than parameters all over their range
      EXPECT_TRUE(each->model().set_scalar("denominator", kTokens - 3));
      each->run(ProgramKind::kFirst, {{"tokens", tokens}, {"labels", tokens}, {"row_lengths", {40, 1, 55}}});
    }
    if (real == DType::kF64) exact = cpu.gradients();
    const double theirs = gradient_distance(cpu, exact), ours = gradient_distance(gpu, exact);
    EXPECT_LE(ours, std::max(1e-11, 1.5 * theirs)) << to_string(real);
    if (real != DType::kBF16) {
      EXPECT_LE(worst_distance(gpu.gradients(), cpu.gradients()), real == DType::kF64 ? 1e-10 : 1e-4);
    }
    const std::vector<double> expected = train(cpu, 12), found = train(gpu, 12);
    double worst = 0;
    for (size_t k = 0; k < expected.size(); ++k) worst = std::max(worst, std::fabs(found[k] - expected[k]) / expected[k]);
    EXPECT_LE(worst, kLossBounds[static_cast<size_t>(real)]) << to_string(real);
    EXPECT_LT(found.back(), found.front());
    fmt::print("  {}: gradients {:.2e} from f64 (CPU {:.2e}); losses of 12 steps {:.6f} -> {:.6f}, {:.2e} from the CPU's\n",
               to_string(real), ours, theirs, found.front(), found.back(), worst);
  }
}

TEST_F(GpuModel, TrainingTwiceGivesTheSameBits) {
  for (const DType real : {DType::kF32, DType::kBF16}) {
    SmallModel first(small_spec(), training_options(real, Backend::kCuda)), second(small_spec(), training_options(real, Backend::kCuda));
    EXPECT_EQ(train(first, 8), train(second, 8));
    EXPECT_EQ(states(first), states(second));
  }
}

TEST_F(GpuModel, InitialiseAndOptimizerStateAreThoseOfTheCpu) {
  SmallModel cpu(small_spec(), training_options(DType::kBF16, Backend::kCpu)),
      gpu(small_spec(), training_options(DType::kBF16, Backend::kCuda));
  for (SmallModel* each : {&cpu, &gpu}) ASSERT_TRUE(each->model().initialise(7));
  EXPECT_EQ(states(gpu), states(cpu));
}

TEST_F(GpuModel, TenThousandStepsTakeNoMoreMemory) {
  SmallModel gpu(small_spec(), training_options(DType::kBF16, Backend::kCuda));
  train(gpu, 2);
  const auto resident = [] {
    std::ifstream statm("/proc/self/statm");
    int64_t pages = 0, pages_resident = 0;
    statm >> pages >> pages_resident;
    return pages_resident * 4096;
  };
  size_t free_before = 0, free_after = 0, total = 0;
  const std::vector<int32_t> tokens = random_tokens(kTokens, 37, 9);
  int64_t resident_before = 0;
  for (int step = 0; step < 10000; ++step) {
    if (step == 100) {
      resident_before = resident();
      ASSERT_EQ(cudaMemGetInfo(&free_before, &total), cudaSuccess);
    }
    ASSERT_TRUE(gpu.model().set_input("tokens", tokens));
    ASSERT_TRUE(gpu.model().set_scalar(kLearningRateName, 1e-4));
    ASSERT_TRUE(gpu.model().run(ProgramKind::kFirst));
    ASSERT_TRUE(gpu.model().run(ProgramKind::kUpdate));
    ASSERT_TRUE(std::isfinite(*gpu.model().scalar(ProgramKind::kFirst, "loss")) || step % 1000 != 0);
  }
  ASSERT_EQ(cudaMemGetInfo(&free_after, &total), cudaSuccess);
  EXPECT_EQ(free_after, free_before);
  EXPECT_LE(resident() - resident_before, 1 << 20);
}

TEST_F(GpuModel, ProfileCoversEveryStep) {
  SmallModel gpu(small_spec(), training_options(DType::kF32, Backend::kCuda));
  train(gpu, 1);
  const Executable& executable = *gpu.model().executable(ProgramKind::kFirst);
  std::vector<StepTime> times(executable.steps().size());
  gpu.model().executor().set_profile(&times);
  EXPECT_TRUE(gpu.model().run(ProgramKind::kFirst));
  gpu.model().executor().set_profile(nullptr);
  double end = 0;
  for (size_t k = 0; k < times.size(); ++k) {
    EXPECT_GE(times[k].start, end - 1e-6) << k;  // one stream
    end = times[k].start + times[k].seconds;
    if (executable.steps()[k].kind != BoundStep::Kind::kKernel) continue;
    EXPECT_GT(times[k].seconds, 0) << k;
  }
}

// A wrong value in the data ends the run with its position, from the first run as from replays, and the next good run is good again.
TEST_F(GpuModel, WrongValuesInTheDataAreReported) {
  Graph g(builtin_ops());
  const ValueId ids = g.add_leaf(LeafKind::kInput, "ids", {DType::kI32, {6}}),
                labels = g.add_leaf(LeafKind::kInput, "labels", {DType::kI32, {6}});
  const ValueId table = g.add_leaf(LeafKind::kParameter, "table", {DType::kF32, {5, 8}});
  const ops::CrossEntropy head = ops::linear_cross_entropy(g, ops::embedding(g, ids, table), table, labels);
  g.add_output("loss", head.loss);
  const Spike spike = make_program("wrong", std::move(g));
  CudaMachine gpu(spike);
  CpuMachine cpu(spike);
  const std::vector<double> good{0, 1, 2, 3, 4, 0};
  gpu.set("table", std::vector<double>(40, 0.5));
  cpu.set("table", std::vector<double>(40, 0.5));
  const auto run = [&](const std::vector<double>& some_ids, const std::vector<double>& some_labels) {
    std::string messages[2];
    Machine* const machines[] = {&gpu, &cpu};
    for (int k = 0; k < 2; ++k) {
      machines[k]->set("ids", some_ids);
      machines[k]->set("labels", some_labels);
      const Status status = machines[k]->run();
      if (!status) {
        EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
        messages[k] = status.error().message;
      }
    }
    EXPECT_EQ(messages[0].empty(), messages[1].empty()) << messages[0] << messages[1];
    return messages[0];
  };
  EXPECT_NE(run({0, 1, 2, 7, -1, 0}, good).find("id 7 at position 3 is outside [0, 5)"), std::string::npos);  // the first run, uncaptured
  EXPECT_EQ(run(good, good), "");
  for (int replay = 0; replay < 2; ++replay) {
    EXPECT_NE(run({0, -3, 2, 7, 4, 0}, good).find("id -3 at position 1 is outside [0, 5)"), std::string::npos);
    EXPECT_NE(run(good, {0, 1, -100, 3, 4, 5}).find("label 5 at position 5 is outside [0, 5) and is not ignore_index"), std::string::npos);
    EXPECT_EQ(run(good, good), "");
  }
}

TEST_F(GpuModel, MoreMemoryThanThereIs) {
  Graph g(builtin_ops());
  const ValueId x = g.add_leaf(LeafKind::kParameter, "huge", {DType::kF64, {1 << 20, 1 << 20}});
  g.add_output("y", ops::scale(g, x, 2.0));
  const Spike spike = make_program("huge", std::move(g));
  const MemoryPlan* const plans[] = {&spike.program.plan};
  const Result<CudaArenas> arenas = CudaArenas::allocate(largest(plans));
  ASSERT_FALSE(bool(arenas));
  EXPECT_EQ(arenas.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(arenas.error().message.find("parameters 8796093022208"), std::string::npos) << arenas.error().message;
}

}  // namespace
}  // namespace glim::testing
