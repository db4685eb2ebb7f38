// The released width on one H200: what a training step and its head take, and what memory the plan and the driver say.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <numeric>

#include "autodiff/training.h"
#include "ops/builtin_ops.h"
#include "ops/linear/linear.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/matmul/matmul.h"
#include "runtime/device.h"
#include "runtime/model.h"
#include "runtime/model_source.h"
#include "runtime/random.h"
#include "tests/gpu/machines.h"

namespace glim::testing {
namespace {

constexpr int64_t kTokens = 8192, kHidden = 6656, kVocabulary = 202048;

size_t free_bytes() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return free;
}

class GpuReleasedWidth : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string why; !cuda_available(why)) GTEST_SKIP() << "skipped: no CUDA device (" << why << ")";
    if (free_bytes() < size_t{120} << 30) GTEST_SKIP() << "skipped: less than 120 GiB of device memory are free";
  }
};

double seconds_of(CudaExecutor& executor, const std::function<void()>& launch, int count) {
  cudaEvent_t from = nullptr, to = nullptr;
  EXPECT_EQ(cudaEventCreate(&from), cudaSuccess);
  EXPECT_EQ(cudaEventCreate(&to), cudaSuccess);
  const auto stream = static_cast<cudaStream_t>(executor.stream());
  EXPECT_EQ(cudaEventRecord(from, stream), cudaSuccess);
  for (int k = 0; k < count; ++k) launch();
  EXPECT_EQ(cudaEventRecord(to, stream), cudaSuccess);
  EXPECT_TRUE(bool(executor.wait()));
  float milliseconds = 0;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, from, to), cudaSuccess);
  cudaEventDestroy(from);
  cudaEventDestroy(to);
  return 1e-3 * static_cast<double>(milliseconds) / count;
}

// A program on the device, its floating-point leaves filled with the same million normal numbers again and again.
class Bound {
 public:
  explicit Bound(Graph graph) : spike_(make_program("bound", std::move(graph))) {
    const MemoryPlan* const plans[] = {&spike_.program.plan};
    const Program* const programs[] = {&spike_.program};
    auto arenas = CudaArenas::allocate(largest(plans));
    GLIM_CHECK(bool(arenas), arenas.error().message);
    arenas_ = *std::move(arenas);
    executable_ = std::make_unique<Executable>(spike_.program, arenas_);
    auto executor = CudaExecutor::create(programs);
    GLIM_CHECK(bool(executor), executor.error().message);
    executor_ = *std::move(executor);
  }
  void fill(ValueId leaf, double deviation) {
    constexpr int64_t kBlock = 1 << 20;
    const TensorView view = executable_->view(leaf);
    std::vector<Bf16> block(kBlock);
    for (int64_t i = 0; i < kBlock; ++i)
      block[static_cast<size_t>(i)] = Bf16(deviation * normal_draw(leaf.index, static_cast<uint64_t>(i)));
    for (int64_t at = 0; at < view.type.shape.numel(); at += kBlock) {
      const int64_t count = std::min(kBlock, view.type.shape.numel() - at);
      const TensorView part = contiguous_view(view.as<Bf16>() + at, {DType::kBF16, {count}});
      EXPECT_TRUE(bool(executor_->write(part, std::as_bytes(std::span(block).first(static_cast<size_t>(count))))));
    }
  }
  void set(ValueId leaf, std::span<const std::byte> bytes) { EXPECT_TRUE(bool(executor_->write(executable_->view(leaf), bytes))); }
  double milliseconds() {
    for (int k = 0; k < 3; ++k) EXPECT_TRUE(bool(executor_->run(*executable_)));
    return 1e3 * seconds_of(
                     *executor_, [&] { EXPECT_TRUE(bool(executor_->launch(*executable_))); }, 10);
  }
  [[nodiscard]] size_t workspace_bytes() const { return spike_.program.plan.bytes(Arena::kWorkspace); }

 private:
  Spike spike_;
  CudaArenas arenas_;
  std::unique_ptr<Executable> executable_;
  std::unique_ptr<CudaExecutor> executor_;
};

// The head, forward and backward with an f32 weight gradient, beside the three products that it cannot do without.
TEST_F(GpuReleasedWidth, TheHeadIsLittleMoreThanItsProducts) {
  const TensorType in{DType::kBF16, {kTokens, kHidden}}, weight{DType::kBF16, {kVocabulary, kHidden}};
  double products = 0;
  {
    Graph g(builtin_ops());
    const ValueId x = g.add_leaf(LeafKind::kInput, "x", in), w = g.add_leaf(LeafKind::kParameter, "w", weight);
    const ValueId logits = ops::linear(g, x, w);
    g.add_output("ct_in", ops::matmul(g, logits, w));
    g.add_output("ct_weight", ops::matmul(g, logits, x, {true, false, true}));
    Bound bound(std::move(g));
    bound.fill(x, 1);
    bound.fill(w, 0.02);
    products = bound.milliseconds();
  }
  for (const int64_t each : {1, 2}) {  // every row has a label, every second one has
    Graph g(builtin_ops());
    const ValueId x = g.add_leaf(LeafKind::kInput, "x", in), w = g.add_leaf(LeafKind::kParameter, "w", weight);
    const ValueId labels = g.add_leaf(LeafKind::kInput, "labels", {DType::kI32, {kTokens}});
    const ValueId seed = g.add_leaf(LeafKind::kInput, "seed", {DType::kF32, {1}});
    ops::LinearCrossEntropyAttrs attrs = ops::kLinearCrossEntropyDefaults;
    attrs.multiplier = 0.19611613513818404;
    attrs.softcap = 20;
    const auto [head, ct] = ops::linear_cross_entropy_grad(g, x, w, labels, {}, seed, {}, {attrs, true, true, true});
    g.add_output("loss", head.loss);
    g.add_output("token_accuracy", head.token_accuracy);
    g.add_output("ct_in", ct.ct_in);
    g.add_output("ct_weight", ct.ct_weight);
    Bound bound(std::move(g));
    bound.fill(x, 1);
    bound.fill(w, 0.02);
    std::vector<int32_t> targets;
    for (int64_t row = 0; row < kTokens; ++row) targets.push_back(row % each == 0 ? static_cast<int32_t>(row * 7919 % kVocabulary) : -100);
    bound.set(labels, std::as_bytes(std::span(targets)));
    const float one = 1;
    bound.set(seed, std::as_bytes(std::span(&one, 1)));
    const double milliseconds = bound.milliseconds(), gib = static_cast<double>(bound.workspace_bytes()) / (1 << 30);
    std::printf("  head, %ld of %ld rows with a label: %.1f ms = %.3f x its three products (%.1f ms); workspace %.2f GiB\n",
                static_cast<long>(kTokens / each), static_cast<long>(kTokens), milliseconds, milliseconds / products, products, gib);
    EXPECT_LT(milliseconds, (each == 1 ? 1.25 : 0.7) * products);
    EXPECT_LE(gib, 1.7);
  }
}

// 20 optimizer steps of four layers and the head.
TEST_F(GpuReleasedWidth, FourLayersTrain) {
  const std::vector<std::string> settings{"num_layers=4"};
  Result<ModelSource> source = open_model("muse_glimmer_30b", settings, "");
  ASSERT_TRUE(source) << source.error().to_string();
  CompileOptions options;
  options.real = DType::kBF16;
  options.runtime_dims = {{"T", kTokens}, {"G", 1}};
  options.optional_inputs = {"denominator"};
  options.programs = {ProgramKind::kFirst, ProgramKind::kUpdate};
  Result<CompiledModel> compiled = compile(source->spec, builtin_ops(), options);
  ASSERT_TRUE(compiled) << compiled.error().to_string();
  const auto arenas = compiled->arena_bytes();
  const auto planned = static_cast<double>(std::accumulate(arenas.begin(), arenas.end(), bytes_beside_arenas(Backend::kCuda)));
  {
    // Libraries and kernels are loaded by a model too small to count.
    const std::vector<std::string> tiny{"num_layers=1"};
    Result<ModelSource> small = open_model("muse_glimmer_tiny", tiny, "");
    ASSERT_TRUE(small);
    CompileOptions few = options;
    few.runtime_dims = {{"T", 64}, {"G", 1}};
    Result<CompiledModel> program = compile(small->spec, builtin_ops(), few);
    ASSERT_TRUE(program);
    Result<Model> model = Model::create(*std::move(program), 0, Backend::kCuda);
    ASSERT_TRUE(model) << model.error().to_string();
    ASSERT_TRUE(bool(model->run(ProgramKind::kFirst)));
  }
  const size_t before = free_bytes();
  Result<Model> model = Model::create(*std::move(compiled), 0, Backend::kCuda);
  ASSERT_TRUE(model) << model.error().to_string();
  ASSERT_TRUE(bool(model->initialise(1)));
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kTokens; ++i)
    ids.push_back(static_cast<int32_t>(uniform_draw(3, static_cast<uint64_t>(i)) * static_cast<double>(kVocabulary)));
  ASSERT_TRUE(bool(model->set_inputs({{"tokens", ids}, {"labels", ids}, {"row_lengths", {static_cast<int32_t>(kTokens)}}})));
  ASSERT_TRUE(bool(model->set_scalar("denominator", static_cast<double>(kTokens - 1))));
  ASSERT_TRUE(bool(model->set_scalar(kLearningRateName, 1e-3)));
  const auto loss = [&] {
    const Result<HostTensor> output = model->output(ProgramKind::kFirst, "loss");
    EXPECT_TRUE(bool(output));
    return output ? output->at(0) : 0.0;
  };
  double first = 0, step_seconds = 0;
  size_t after_first = 0;
  for (int step = 0; step < 20; ++step) {
    ASSERT_TRUE(bool(model->run(ProgramKind::kFirst)));
    if (step == 0) first = loss();
    ASSERT_TRUE(bool(model->run(ProgramKind::kUpdate)));
    if (step == 0) after_first = free_bytes();
  }
  const double last = loss(), taken = static_cast<double>(before - free_bytes());
  EXPECT_EQ(free_bytes(), after_first) << "device memory was allocated after the first step";
  EXPECT_LT(last, 0.9 * first);
  auto& executor = dynamic_cast<CudaExecutor&>(model->executor());
  step_seconds = seconds_of(
      executor, [&] { EXPECT_TRUE(bool(executor.launch(*model->executable(ProgramKind::kFirst)))); }, 10);
  std::printf("  loss %.4f -> %.4f in 20 steps; forward + backward %.1f ms; plan %.3f GiB, driver %.3f GiB\n", first, last,
              1e3 * step_seconds, planned / (1 << 30), taken / (1 << 30));
  EXPECT_LT(std::fabs(taken - planned), std::max(0.02 * planned, 256.0 * (1 << 20)));
  EXPECT_LT(step_seconds, 0.33);
}

}  // namespace
}  // namespace glim::testing
