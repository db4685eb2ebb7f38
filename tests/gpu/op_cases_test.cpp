// Walks the op table, as tests/ops does: every case of every op in every dtype, the CUDA kernel against the CPU kernel on the same inputs.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/adamw/adamw.h"
#include "ops/builtin_ops.h"
#include "ops/clip/clip.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/embedding/embedding.h"
#include "ops/gather_rows/gather_rows.h"
#include "ops/qk_norm/qk_norm.h"
#include "ops/residual_norm/residual_norm.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/scatter_add_rows/scatter_add_rows.h"
#include "runtime/device.h"
#include "tests/gpu/device_run.h"
#include "tests/ops/case_inputs.h"
#include "tests/ops/worst_errors.h"

namespace glim::testing {
namespace {

constexpr DType kReals[] = {DType::kF64, DType::kF32, DType::kBF16};
constexpr double kBounds[] = {1e-12, 5e-6, 3.91e-3};  // f64; f32; bf16: results of f32 arithmetic that are rounded once
// Ops that hold an intermediate value in bf16, for the tensor cores.
constexpr std::string_view kRoundTwice[] = {"linear_cross_entropy_vjp", "linear_cross_entropy_grad", "attention", "attention_vjp"};
constexpr double kTwiceBound = 1e-2;

bool holds(std::span<const std::string_view> list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

auto* const worst_errors = static_cast<WorstErrors*>(::testing::AddGlobalTestEnvironment(new WorstErrors));

double bound_of(const OpDef& def, DType real) {
  return real == DType::kBF16 && holds(kRoundTwice, def.name) ? kTwiceBound : kBounds[static_cast<size_t>(real)];
}

void expect_close(const OpDef& def, DType real, const std::string& where, const Tensor& found, const Tensor& expected) {
  ASSERT_EQ(found.type(), expected.type()) << where;
  EXPECT_EQ(found.num_poisoned(), 0) << where << ": elements left unwritten (or NaN)";
  if (!is_float(found.type().dtype)) {
    EXPECT_EQ(found.values(), expected.values()) << where;
    return;
  }
  const std::vector<double> a = found.values(), b = expected.values();
  if (norm(b) == 0) {
    EXPECT_LE(norm(a), 1e-14) << where;
    return;
  }
  const double error = relative_error(a, b);
  EXPECT_LE(error, bound_of(def, real)) << where;
  worst_errors->add(fmt::format("{} CUDA vs CPU", to_string(real)), where, error);
}

bool same_bits(const KernelRun& a, const KernelRun& b) {
  return std::equal(a.out.begin(), a.out.end(), b.out.begin(), b.out.end(),
                    [](const Tensor& left, const Tensor& right) { return left.bits() == right.bits(); });
}

// One case in one dtype: right, repeatable, wherever its tensors lie.
void check_case(const OpDef& def, const OpCase& c, DType real) {
  const std::string at = fmt::format("{} ({}) {}", def.name, c.name, to_string(real));
  const std::vector<Tensor> inputs = make_inputs(c, real);
  const std::vector<const Tensor*> in = operands_of(c, inputs);
  const KernelRun expected = run_op(def, c.attr_words, in);
  const DeviceRun first = run_op_on_device(def, c.attr_words, in);
  EXPECT_EQ(first.error, expected.error) << at;
  ASSERT_EQ(first.out.size(), expected.out.size()) << at;
  for (size_t k = 0; k < first.out.size(); ++k)
    expect_close(def, real, fmt::format("{} {}", at, def.outputs[std::min(k, def.outputs.size() - 1)]), first.out[k], expected.out[k]);
  EXPECT_TRUE(same_bits(first, run_op_on_device(def, c.attr_words, in))) << at << ": another run has other bits";
  for (const DeviceRunOptions& options :
       {DeviceRunOptions{}, DeviceRunOptions{.in_place = true}, DeviceRunOptions{.margins = true}, DeviceRunOptions{.misaligned = true},
        DeviceRunOptions{.margins = true, .misaligned = true}, DeviceRunOptions{.margins = true, .in_place = true}}) {
    const DeviceRun run = run_op_on_device(def, c.attr_words, in, options);
    const std::string how =
        fmt::format("{} margins={} misaligned={} in_place={}", at, options.margins, options.misaligned, options.in_place);
    EXPECT_EQ(run.error, expected.error) << how;
    EXPECT_TRUE(run.operands_intact) << how << " changes an operand";
    EXPECT_TRUE(run.margins_intact) << how << " writes outside its rows";
    EXPECT_TRUE(run.workspace_intact) << how << " writes behind its workspace";
    for (size_t k = 0; k < run.out.size(); ++k) expect_close(def, real, fmt::format("{} out {}", how, k), run.out[k], expected.out[k]);
  }
}

std::vector<uint16_t> rows_of_table() {
  std::vector<uint16_t> rows;
  for (uint16_t row = 1; row < builtin_ops().size(); ++row) rows.push_back(row);
  return rows;
}

class SmallOps : public ::testing::TestWithParam<uint16_t> {
 protected:
  void SetUp() override {
    if (std::string why; !cuda_available(why)) GTEST_SKIP() << "skipped: no CUDA device (" << why << ")";
    if (def.cuda == nullptr) GTEST_SKIP() << "no CUDA kernel";
  }
  const OpDef& def = builtin_ops()[OpId{GetParam()}];
};
INSTANTIATE_TEST_SUITE_P(Gpu, SmallOps, ::testing::ValuesIn(rows_of_table()),
                         [](const auto& row) { return std::string(builtin_ops()[OpId{row.param}].name); });

TEST(GpuOps, EveryOpHasAKernel) {
  for (const uint16_t row : rows_of_table()) {
    const OpDef& def = builtin_ops()[OpId{row}];
    EXPECT_TRUE(def.cuda != nullptr) << def.name << " has no CUDA kernel";
  }
}

TEST_P(SmallOps, EveryCaseMatchesTheCpu) {
  for (const OpCase& c : def.cases()) {
    for (const DType real : kReals) check_case(def, c, real);
  }
}

// Every extent of every case set to 0, to 1 and to one more, wherever it occurs: whatever infer accepts. Index values stay as they were, so
// that some are out of range now: reported with the same words, and no stray access.
TEST_P(SmallOps, OtherExtentsMatchTheCpu) {
  for (const OpCase& c : def.cases()) {
    std::vector<int64_t> extents;
    for (const CaseInput& input : c.inputs)
      extents.insert(extents.end(), input.shape.dims.begin(), input.shape.dims.begin() + input.shape.rank);
    std::sort(extents.begin(), extents.end());
    extents.erase(std::unique(extents.begin(), extents.end()), extents.end());
    for (const int64_t extent : extents) {
      for (const int64_t changed : {int64_t{0}, int64_t{1}, extent + 1}) {
        OpCase other = c;
        for (CaseInput& input : other.inputs) {
          for (int axis = 0; axis < input.shape.rank; ++axis) {
            if (input.shape[axis] == extent) input.shape.dims[static_cast<size_t>(axis)] = changed;
          }
          if (input.fill == Fill::kSegments && input.limit == extent) input.limit = changed;
          if (input.fill == Fill::kSegments && input.shape[0] < 2) input.fill = Fill::kZero;
        }
        for (const DType real : {DType::kF32, DType::kBF16}) {
          const std::vector<Tensor> inputs = make_inputs(other, real);
          const std::vector<const Tensor*> in = operands_of(other, inputs);
          std::vector<const TensorType*> types;
          for (const Tensor* operand : in) types.push_back(operand != nullptr ? &operand->type() : nullptr);
          if (!def.infer({types, other.attr_words})) continue;
          const std::string at = fmt::format("{} ({}) {} extent {} -> {}", def.name, c.name, to_string(real), extent, changed);
          const KernelRun expected = run_op(def, other.attr_words, in);
          const DeviceRun run = run_op_on_device(def, other.attr_words, in, {.margins = changed > 1});
          const bool is_told =
              expected.error.empty()
                  ? run.error.empty()
                  : !run.error.empty() && expected.error.find(run.error.substr(0, run.error.find(" and"))) != std::string::npos;
          EXPECT_TRUE(is_told) << at << ": the CPU says '" << expected.error << "', the device '" << run.error << "'";
          EXPECT_TRUE(run.margins_intact && run.operands_intact && run.workspace_intact) << at;
          for (size_t k = 0; k < run.out.size(); ++k) expect_close(def, real, fmt::format("{} out {}", at, k), run.out[k], expected.out[k]);
        }
      }
    }
  }
}

class GpuLarge : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string why; !cuda_available(why)) GTEST_SKIP() << "skipped: no CUDA device (" << why << ")";
  }
  static void check(std::string_view op, const OpCase& c) {
    const OpDef& def = builtin_ops()[*builtin_ops().find(op)];
    for (const DType real : {DType::kF32, DType::kBF16}) check_case(def, c, real);
  }
};

// Several blocks, several loops of a grid, several launches; sizes that are no multiple of anything.
TEST_F(GpuLarge, Elementwise) {
  const CaseInput x{{517, 1031}}, y{{3, 70001}}, z{{70001, 5}};
  for (const CaseInput& in : {x, y, z}) {
    check("add", {"large", {in, in}, {}});
    check("swiglu_vjp", {"large", {in, in, in}, {}});
    check("cast", {"large", {in}, to_words(int64_t{2})});
    check("rms_norm", {"large", {in, {{in.shape[1]}}}, builtin_ops()[*builtin_ops().find("rms_norm")].cases()[1].attr_words});
    check("sum_rows", {"large", {in}, {}});
  }
}
TEST_F(GpuLarge, ManyRowsOfOneIndex) {
  const CaseInput indices{{5001}, Fill::kIndices, CaseDType::kI32, 40}, all_zero{{5001}, Fill::kZero, CaseDType::kI32};
  for (const CaseInput& each : {indices, all_zero}) {
    check("scatter_add_rows", {"large", {{{5001, 263}}, each, {{1}, Fill::kAbsent}}, to_words(ops::ScatterAddRowsAttrs{7001, -1, 0})});
    check("scatter_add_rows", {"large, accumulated",
                               {{{5001, 264}}, each, {{7001, 264}, Fill::kNormal, CaseDType::kAccumulation}},
                               to_words(ops::ScatterAddRowsAttrs{7001, -1, 1})});
    check("gather_rows", {"large", {{{41, 1024}}, each}, to_words(ops::GatherRowsAttrs{3})});
    check("embedding", {"large", {each, {{41, 1000}}}, to_words(ops::EmbeddingAttrs{-1})});
  }
}
TEST_F(GpuLarge, LargeVocabulary) {
  const CaseInput absent{{1}, Fill::kAbsent};
  for (const int64_t vocabulary : {50257, 65536}) {
    const CaseInput logits{{37, vocabulary}}, labels{{37}, Fill::kLabels, CaseDType::kI32, vocabulary};
    const CaseInput one{{1}, Fill::kPositive, CaseDType::kAccumulation}, count{{1}, Fill::kOne, CaseDType::kI64},
        rows{{37}, Fill::kPositive, CaseDType::kAccumulation};
    check("cross_entropy", {"large", {logits, labels, absent}, to_words(ops::kCrossEntropyDefaults)});
    check("cross_entropy_vjp", {"large", {logits, labels, absent, count, rows, one, rows}, to_words(ops::kCrossEntropyDefaults)});
  }
}
TEST_F(GpuLarge, RopeOfReleasedWidth) {
  const CaseInput positions{{301}, Fill::kIndices, CaseDType::kI32, 130000};
  check("rope", {"large", {{{301, 32 * 128}}, positions}, to_words(ops::RopeAttrs{128, 500000, 0})});
  check("rope", {"large", {{{301, 3 * 130}}, positions}, to_words(ops::RopeAttrs{130, 500000, 1})});
}
// Staged in shared memory, too long for that, and a multiple of nothing; one row, fewer rows than blocks, many per block.
TEST_F(GpuLarge, NormsOfLongRows) {
  const CaseInput none{{1}, Fill::kAbsent};
  const auto norm = to_words(ops::RmsNormAttrs{1e-5, 1, 0}), both = to_words(ops::ResidualNormAttrs{1e-8, 1, 1e-5, 1});
  for (const Shape& shape : {Shape{37, 6656}, Shape{1, 6656}, Shape{7, 19968}, Shape{2, 70000}, Shape{150, 1032}, Shape{150, 1031}}) {
    const CaseInput rows{shape}, weight{{shape[1]}};
    check("rms_norm", {"large", {rows, weight}, norm});
    check("rms_norm_vjp", {"large", {rows, weight, rows, rows}, norm});
    check("rms_norm_vjp", {"large, scaleless", {rows, none, rows, none}, norm});
    check("residual_norm", {"large", {rows, rows, weight, weight}, both});
    check("residual_norm", {"large, one norm", {rows, rows, weight, none}, to_words(ops::ResidualNormAttrs{1e-8, 1, 0, 0})});
    check("residual_norm_vjp", {"large", {rows, rows, weight, weight, rows, rows}, both});
    check("residual_norm_vjp", {"large, of normed alone", {rows, rows, none, weight, rows, none}, both});
  }
  const CaseInput many_rows{{531, 6656}}, weight{{6656}};
  check("residual_norm", {"many rows", {many_rows, many_rows, weight, weight}, both});
  check("residual_norm_vjp", {"many rows", {many_rows, many_rows, weight, weight, many_rows, many_rows}, both});
  for (const int64_t group : {128, 1024, 3000}) {
    const CaseInput rows{{61, 3 * group}}, scale{{group}};
    check("rms_norm", {"groups", {rows, scale}, to_words(ops::RmsNormAttrs{1e-5, 0, group})});
    check("rms_norm_vjp", {"groups", {rows, scale, rows, rows}, to_words(ops::RmsNormAttrs{1e-5, 0, group})});
  }
}
TEST_F(GpuLarge, HeadsOfReleasedWidth) {
  const CaseInput none{{1}, Fill::kAbsent};
  for (const auto& [rows, heads, head_dim] : {std::array<int64_t, 3>{101, 32, 128}, {1003, 2, 128}, {33, 3, 130}, {9, 9, 1024}}) {
    const CaseInput in{{rows, heads * head_dim}}, positions{{rows}, Fill::kIndices, CaseDType::kI32, 130000};
    const auto words = to_words(ops::QkNormAttrs{1e-5, head_dim, 3.87, 500000});
    check("qk_norm", {"large", {in, positions}, words});
    check("qk_norm", {"large, not rotated", {in, none}, words});
    check("qk_norm_vjp", {"large", {in, positions, in}, words});
    check("qk_norm_vjp", {"large, not rotated", {in, none, in}, words});
  }
}
TEST_F(GpuLarge, ThousandTensorsInOneUpdate) {
  for (const bool has_master : {false, true}) {
    OpCase c{"large",
             {{{1}, Fill::kPositive, CaseDType::kAccumulation},
              {{1}, Fill::kOne, CaseDType::kAccumulation},
              {{1}, Fill::kPositive, CaseDType::kAccumulation},
              {{1}, Fill::kOne, CaseDType::kI32}},
             to_words(ops::AdamwAttrs{0.9, 0.95, 1e-8, 0.1, has_master ? 1 : 0})};
    OpCase squares{"large", {}, {}};
    for (int64_t k = 0; k < 1000; ++k) {
      const Shape shape = k % 3 == 0 ? Shape{k % 67 + 1} : k % 100 == 1 ? Shape{97, 1001} : Shape{k % 5 + 1, k % 13 + 1};
      c.inputs.push_back({shape});
      if (has_master) c.inputs.push_back({shape, Fill::kNormal, CaseDType::kAccumulation});
      c.inputs.push_back({shape, Fill::kNormal, CaseDType::kAccumulation});
      c.inputs.push_back({shape, Fill::kNormal, CaseDType::kAccumulation});
      c.inputs.push_back({shape, Fill::kPositive, CaseDType::kAccumulation});
      squares.inputs.push_back({shape});
    }
    check("adamw", c);
    check("sum_of_squares", squares);
  }
}

// A step with finite == 0 leaves every bit, and NaN and infinity in gradients show in the norm.
TEST_F(GpuLarge, SkippedUpdateChangesNothing) {
  const OpDef& def = builtin_ops()[*builtin_ops().find("adamw")];
  for (const OpCase& c : def.cases()) {
    if (c.name != "skipped") continue;
    for (const DType real : kReals) {
      std::vector<Tensor> inputs = make_inputs(c, real);
      inputs[6].set(0, NAN);  // a gradient
      const std::vector<const Tensor*> in = operands_of(c, inputs);
      const KernelRun expected = run_op(def, c.attr_words, in);
      for (const bool in_place : {false, true}) {
        const DeviceRun run = run_op_on_device(def, c.attr_words, in, {.in_place = in_place});
        EXPECT_TRUE(same_bits(run, expected)) << to_string(real);
      }
    }
  }
}
TEST_F(GpuLarge, NotFiniteValuesShow) {
  const auto run = [](std::string_view op, const std::vector<Tensor>& inputs, std::vector<uint32_t> words = {}) {
    std::vector<const Tensor*> in;
    for (const Tensor& each : inputs) in.push_back(&each);
    return run_op_on_device(builtin_ops()[*builtin_ops().find(op)], words, in).out;
  };
  for (const double bad : {double{NAN}, double{INFINITY}}) {
    for (const DType real : kReals) {
      std::vector<double> values = random_normal(7 * 4099, 3);
      values[12345] = bad;
      const Tensor in({real, {7, 4099}}, values);
      const std::vector<Tensor> sum = run("sum_of_squares", {in});
      EXPECT_FALSE(std::isfinite(sum[0].get(0)));
      EXPECT_EQ(run("clip", sum, to_words(ops::ClipAttrs{1.0}))[2].get(0), 0);
      EXPECT_EQ(run("clip", sum, to_words(ops::ClipAttrs{1.0}))[0].get(0), 0);
      if (std::isnan(bad)) {
        for (const std::string_view op : {"sigmoid", "gelu"}) EXPECT_TRUE(std::isnan(run(op, {in})[0].get(12345))) << op;
        EXPECT_TRUE(std::isnan(run("swiglu", {in, in})[0].get(12345)));
      }
    }
  }
}

}  // namespace
}  // namespace glim::testing
