// Matrix products whose algorithm is chosen by timing: right, remembered, and without a trace in the memory; names for profilers; timelines
// and benchmarks of the program; runs that go on with the algorithms of their checkpoint.
#include "runtime/cuda_products.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#define NVTX_NO_IMPL  // this is the tool, not what it looks at
#include <nvtx3/nvToolsExt.h>

#include "runtime/device.h"
#include "runtime/product_cache.h"
#include "tests/cli/program.h"
#include "tests/gpu/machines.h"
#include "tests/ops/case_inputs.h"
#include "tests/runtime/small_model.h"

namespace {

// A profiler inside this program: keeps the names of ranges while somebody wants them.
std::vector<std::string>* range_names = nullptr;
int NVTX_API push_range(const char* name) {
  if (range_names != nullptr) range_names->emplace_back(name);
  return 0;
}
int NVTX_API attach_profiler(NvtxGetExportTableFunc_t export_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &size) == 0) return 0;
  *functions[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(push_range);
  return 1;
}

}  // namespace
extern "C" {
extern NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr;
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = attach_profiler;
}

namespace glim::testing {
namespace {

// Nothing of these tests, and of the programs that they start, goes to the user's own cache.
class OwnCache : public ::testing::Environment {
 public:
  void SetUp() override { ::setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1); }

 private:
  ScratchFolder folder_;
};
const auto* const kOwnCache = ::testing::AddGlobalTestEnvironment(new OwnCache);

class GpuProducts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string why; !cuda_available(why)) GTEST_SKIP() << "skipped: no CUDA device (" << why << ")";
    before_ = std::getenv("XDG_CACHE_HOME");
    use_cache(folder_ / "cache");
  }
  void TearDown() override {
    if (before_) ::setenv("XDG_CACHE_HOME", before_->c_str(), 1);
  }
  static void use_cache(const std::string& folder) { ::setenv("XDG_CACHE_HOME", folder.c_str(), 1); }
  static bool has_cache() { return std::filesystem::exists(product_cache_path()); }

  ScratchFolder folder_;
  std::optional<std::string> before_;
};

struct Sizes {
  int64_t rows, depth, columns;
  bool a_transposed, b_transposed, adds;
};
constexpr Sizes kSizes[] = {{96, 264, 136, false, true, false},
                            {96, 264, 136, false, false, true},
                            {264, 96, 136, true, false, true},
                            {7, 5, 9, false, true, true},
                            {640, 4096, 128, true, false, true}};

// c = a b (+ c) with the choice, and its distance from f64 on the host.
double distance_of(CudaProducts& products, const Sizes& s, DType dtype, DType c_dtype) {
  const auto upload = [](const Tensor& tensor) {
    void* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, tensor.type().bytes()), cudaSuccess);
    const std::vector<std::byte> bytes = tensor.bits();
    EXPECT_EQ(cudaMemcpy(data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), cudaSuccess);
    return data;
  };
  const auto make = [](DType type, int64_t rows, int64_t columns, uint64_t seed) {
    return Tensor({type, {rows, columns}}, random_normal(rows * columns, seed));
  };
  const Tensor a = s.a_transposed ? make(dtype, s.depth, s.rows, 1) : make(dtype, s.rows, s.depth, 1);
  const Tensor b = s.b_transposed ? make(dtype, s.columns, s.depth, 2) : make(dtype, s.depth, s.columns, 2);
  Tensor c = make(c_dtype, s.rows, s.columns, 3);
  const std::vector<double> left = a.values(), right = b.values(), start = c.values();
  std::vector<double> expected(start.size());
  for (int64_t i = 0; i < s.rows; ++i) {
    for (int64_t j = 0; j < s.columns; ++j) {
      double sum = s.adds ? start[static_cast<size_t>(i * s.columns + j)] : 0;
      for (int64_t k = 0; k < s.depth; ++k) {
        sum += left[static_cast<size_t>(s.a_transposed ? k * s.rows + i : i * s.depth + k)] *
               right[static_cast<size_t>(s.b_transposed ? j * s.depth + k : k * s.columns + j)];
      }
      expected[static_cast<size_t>(i * s.columns + j)] = sum;
    }
  }
  void* on_device[] = {upload(a), upload(b), upload(c)};
  const Status status = products.run({.rows = s.rows,
                                      .columns = s.columns,
                                      .depth = s.depth,
                                      .beta = s.adds ? 1.0 : 0.0,
                                      .dtype = dtype,
                                      .a = {on_device[0], a.type().shape[1], s.a_transposed},
                                      .b = {on_device[1], b.type().shape[1], s.b_transposed},
                                      .c = on_device[2],
                                      .c_dtype = c_dtype,
                                      .c_row_stride = s.columns},
                                     nullptr);
  EXPECT_TRUE(bool(status)) << (status ? "" : status.error().message);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(c.view().data, on_device[2], c.type().bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
  for (void* each : on_device) cudaFree(each);
  return relative_error(c.values(), expected);
}

// The first product of a shape is right although its candidates ran first; what they used is free again.
TEST_F(GpuProducts, TimingHarmsNothing) {
  CudaProducts products;
  ASSERT_TRUE(products.open(ProductAlgorithms::kTimed));
  for (const auto& [dtype, c_dtype, bound] : {std::tuple(DType::kBF16, DType::kF32, 1e-5), std::tuple(DType::kBF16, DType::kBF16, 3e-3),
                                              std::tuple(DType::kF32, DType::kF32, 1e-6), std::tuple(DType::kF64, DType::kF64, 1e-14)}) {
    for (const Sizes& sizes : kSizes) {
      EXPECT_LE(distance_of(products, sizes, dtype, c_dtype), bound) << to_string(dtype) << " " << sizes.rows;  // f32 with TF32: 1e-4
    }
  }
  EXPECT_EQ(products.algorithms().size(), 4 * std::size(kSizes));
  size_t before = 0, after = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  distance_of(products, {512, 64, 4096, true, false, true}, DType::kBF16, DType::kF32);
  distance_of(products, {512, 64, 4096, true, false, true}, DType::kBF16, DType::kF32);
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_LE(before - after, size_t{4} << 20);  // the code of kernels
}

TEST_F(GpuProducts, ChoicesAreRememberedAndTakenOver) {
  const auto run = [](CudaProducts& products) {
    for (const Sizes& sizes : kSizes) distance_of(products, sizes, DType::kBF16, DType::kF32);
    products.keep();
    return products.algorithms();
  };
  const auto opened = [&](ProductAlgorithms choice) {
    auto products = std::make_unique<CudaProducts>();
    EXPECT_TRUE(products->open(choice));
    return products;
  };
  EXPECT_TRUE(run(*opened(ProductAlgorithms::kFixed)).empty());
  EXPECT_FALSE(has_cache()) << "a strict run times nothing";
  const AlgorithmChoices first = run(*opened(ProductAlgorithms::kTimed));
  ASSERT_EQ(first.size(), std::size(kSizes));
  for (const auto& [product, algorithm] : first) fmt::print("  {}: {}\n", product, algorithm);
  ASSERT_TRUE(has_cache());
  const std::string kept = read_file(product_cache_path());
  EXPECT_EQ(run(*opened(ProductAlgorithms::kTimed)), first);
  EXPECT_EQ(read_file(product_cache_path()), kept);

  // From a checkpoint, without a cache: nothing is timed.
  use_cache(folder_ / "other");
  auto resumed = opened(ProductAlgorithms::kTimed);
  resumed->set_algorithms(first);
  EXPECT_EQ(run(*resumed), first);
  EXPECT_FALSE(has_cache());
  // What this machine does not offer is timed again; nothing reaches the library.
  AlgorithmChoices wrong;
  for (const auto& [product, algorithm] : first) wrong[product] = std::string(128, 'f');
  wrong.begin()->second = "";
  auto other = opened(ProductAlgorithms::kTimed);
  other->set_algorithms(wrong);
  const AlgorithmChoices again = run(*other);
  ASSERT_EQ(again.size(), first.size());
  for (const auto& [product, algorithm] : again) EXPECT_NE(algorithm, wrong[product]);
  EXPECT_TRUE(has_cache());
  // A cache that cannot be written is no error.
  write_file(folder_ / "file", "");
  use_cache(folder_ / "file");
  EXPECT_EQ(run(*opened(ProductAlgorithms::kTimed)).size(), first.size());
}

TEST_F(GpuProducts, RangesHaveTheNamesOfNodes) {
  SmallModel gpu(small_spec(), {.programs = {ProgramKind::kForward}, .real = DType::kF32, .backend = Backend::kCuda});
  const std::vector<int32_t> tokens = random_tokens(16, 37, 3);
  std::vector<std::string> first, replayed;
  range_names = &first;
  gpu.run(ProgramKind::kForward, {{"tokens", tokens}, {"labels", tokens}, {"row_lengths", {16}}});
  range_names = &replayed;
  EXPECT_TRUE(gpu.model().run(ProgramKind::kForward));
  range_names = nullptr;
  const Executable& executable = *gpu.model().executable(ProgramKind::kForward);
  for (const BoundStep& step : executable.steps()) {  // once when it runs, once when it is captured
    EXPECT_GE(std::count(first.begin(), first.end(), executable.describe(step)), 2) << executable.describe(step);
  }
  EXPECT_EQ(replayed, std::vector<std::string>{"forward"});
}

TEST_F(GpuProducts, AnyThreadMayRunAModel) {
  SmallModel gpu(small_spec(), {.programs = {ProgramKind::kForward}, .real = DType::kF32, .backend = Backend::kCuda});
  const std::vector<int32_t> tokens = random_tokens(16, 37, 3);
  const auto loss = [&] {
    gpu.run(ProgramKind::kForward, {{"tokens", tokens}, {"labels", tokens}, {"row_lengths", {16}}});
    return *gpu.model().scalar(ProgramKind::kForward, "loss");
  };
  const double here = loss();
  double there = 0;
  std::thread([&] { there = loss(); }).join();
  EXPECT_EQ(there, here);
}

// Stopped after six of twelve steps and gone on without the cache: the algorithms of the checkpoint, and so the same bits. With another
// algorithm in the checkpoint the run says that it timed again.
TEST_F(GpuProducts, ARunGoesOnWithTheAlgorithmsOfItsCheckpoint) {
  std::string text;
  for (int k = 0; k < 400; ++k) text += fmt::format("the {}th line says that {} times {} is {}\n", k, k, k + 1, k * (k + 1));
  write_file(folder_ / "corpus.txt", text);
  write_file(
      folder_ / "train.toml",
      "model = \"muse_glimmer_tiny\"\n[data]\ntext = [\"corpus.txt\"]\n[train]\nsteps = 12\ntokens = 256\nmicro_steps = 2\nbackend = "
      "\"cuda\"\ndtype = \"bf16\"\noutput = \"straight\"\n[checkpoint]\nevery = 6\nkeep_last = 9\n");
  const ProgramResult straight = run_glim({"train", folder_ / "train.toml", "--trace", folder_ / "trace.json"});
  ASSERT_EQ(straight.exit_code, 0) << straight.err;
  const std::string checkpoint = folder_ / "straight/checkpoints/step-00000006";
  const nlohmann::json state = nlohmann::json::parse(read_file(checkpoint + "/state.json"));
  EXPECT_GT(state["algorithms"].size(), 10U);
  use_cache(folder_ / "empty");
  const auto resume = [&](const std::string& output, const std::string& strict) {
    const ProgramResult result = run_glim(
        {"train", folder_ / "train.toml", "--resume", checkpoint, "--set", "train.output=" + output, "--set", "train.strict=" + strict});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(resume("resumed", "false").find("timed again"), std::string::npos);
  EXPECT_EQ(read_folder(folder_ / "resumed/model"), read_folder(folder_ / "straight/model"));
  EXPECT_NE(resume("strict", "true").find("train.strict was false and is true now"), std::string::npos);

  const nlohmann::json trace = nlohmann::json::parse(read_file(folder_ / "trace.json"));
  double end = 0, seconds = 0;
  size_t num_steps = 0;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["tid"] != 1) continue;
    EXPECT_GE(event["ts"].get<double>(), end - 1) << event;
    end = event["ts"].get<double>() + event["dur"].get<double>();
    seconds += event["dur"].get<double>() * 1e-6;
    ++num_steps;
  }
  EXPECT_GT(num_steps, 200U);
  fmt::print("  a traced step: {} device steps in {:.3f} ms\n", num_steps, 1e3 * seconds);
}

TEST_F(GpuProducts, TheProgramMeasuresItsOps) {
  const ProgramResult result = run_glim({"bench", "--backend", "cuda", "--op", "matmul", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json report = nlohmann::json::parse(result.out);
  EXPECT_GT(report["copy_bytes_per_second"].get<double>(), 1e12);
  EXPECT_GT(report["product_flops_per_second"].get<double>(), 1e14);
  for (const nlohmann::json& each : report["cases"]) EXPECT_GT(each["percent_of_roofline"].get<double>(), 10) << each;
}

}  // namespace
}  // namespace glim::testing
