#include "ops/matmul/matmul.h"

#include <cstring>

#include "engine/passes/fuse.h"
#include "ops/cast/cast.h"
#include "ops/cpu.h"
#include "ops/gemm.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"a"}, {"b"}, {"accumulator", true}};
constexpr std::string_view kOutputs[] = {"out"};
constexpr AttrSpec kAttrs[] = {bool_attr("transpose_a", false, "a is stored as [K, M]"),
                               bool_attr("transpose_b", false, "b is stored as [N, K]"),
                               bool_attr("wide_output", false, "the result has the accumulation type")};

Result<Types> infer(const InferArgs& a) {
  const auto attrs = a.attrs<MatmulAttrs>();
  const TensorType &left = *a.in[0], &right = *a.in[1];
  GLIM_EXPECT(is_float(left.dtype) && left.dtype == right.dtype, "operands must have one floating-point type, not {} and {}",
              to_string(left.dtype), to_string(right.dtype));
  GLIM_EXPECT(left.shape.rank == 2 && right.shape.rank == 2, "operands must have rank 2, not {} and {}", to_string(left), to_string(right));
  const int64_t rows = left.shape[attrs.transpose_a ? 1 : 0], depth = left.shape[attrs.transpose_a ? 0 : 1];
  const int64_t depth_b = right.shape[attrs.transpose_b ? 1 : 0], columns = right.shape[attrs.transpose_b ? 0 : 1];
  GLIM_EXPECT(depth == depth_b, "the contracted axes differ: {} of {}{} and {} of {}{}", depth, to_string(left),
              attrs.transpose_a ? " transposed" : "", depth_b, to_string(right), attrs.transpose_b ? " transposed" : "");
  TensorType out{attrs.wide_output ? accumulation_dtype(left.dtype) : left.dtype, {rows, columns}};
  if (a.in[2] != nullptr) GLIM_EXPECT(*a.in[2] == out, "the accumulator must be {}, not {}", to_string(out), to_string(*a.in[2]));
  return Types{out};
}

// out = acc + A B;  ct_A = ct B^T, ct_B = A^T ct (transposed where the operand is), ct_acc = ct
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  const auto attrs = a.attrs<MatmulAttrs>();
  const bool ta = attrs.transpose_a != 0, tb = attrs.transpose_b != 0;
  const ValueId wide = a.cotangents[0], left = a.in[0], right = a.in[1];
  const ValueId ct = cast(g, wide, g.type(left).dtype);
  return {ta ? matmul(g, right, ct, {tb, true}) : matmul(g, ct, right, {false, !tb}),
          tb ? matmul(g, ct, left, {true, ta}) : matmul(g, left, ct, {!ta, false}), a.in[2].valid() ? wide : ValueId{}};
}

void cpu(const KernelArgs& k) {
  const auto attrs = k.attrs<MatmulAttrs>();
  const TensorView &a = k.in[0], &b = k.in[1], &accumulator = k.in[2], &out = k.out[0];
  const int64_t rows = out.type.shape[0], columns = out.type.shape[1], depth = a.type.shape[attrs.transpose_a ? 0 : 1];
  // The plan makes them one buffer; only a caller without a plan passes two.
  if (accumulator.present() && accumulator.data != out.data) {
    for (int64_t i = 0; i < rows; ++i) {
      std::memcpy(out.as<std::byte>() + static_cast<size_t>(i * out.row_stride) * size_of(out.type.dtype),
                  accumulator.as<std::byte>() + static_cast<size_t>(i * accumulator.row_stride) * size_of(out.type.dtype),
                  static_cast<size_t>(columns) * size_of(out.type.dtype));
    }
  }
  cpu::dispatch_float(a.type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto run = [&]<class C>(C* c) {
      cpu::gemm<T, T, C>(k.context, rows, columns, depth, 1.0, {a.as<T>(), a.row_stride, attrs.transpose_a != 0},
                         {b.as<T>(), b.row_stride, attrs.transpose_b != 0}, c, out.row_stride,
                         accumulator.present() ? cpu::Into::kAdd : cpu::Into::kOverwrite);
    };
    if (out.type.dtype == a.type.dtype)
      run(out.as<T>());
    else
      run(out.as<cpu::Accumulate<T>>());
  });
}

Cost cost(const CostArgs& a) {
  Cost cost = moved(a);
  cost.flops = 2.0 * static_cast<double>(a.in[0]->shape.numel()) * static_cast<double>(a.out[0].shape[1]);
  return cost;
}

AliasFact alias(const InferArgs& a, uint16_t) { return a.in[2] != nullptr ? AliasFact{AliasKind::kMust, 2} : AliasFact{}; }

// add(accumulator, matmul(a, b)) -> matmul(a, b, accumulator), where the accumulator is main-gradient state that nothing else reads.
std::optional<FusionMatch> accumulate(const FuseArgs& f) {
  const Graph& g = f.graph;
  const std::span<const ValueId> terms = g.inputs(f.root);
  for (size_t k = 0; k < 2; ++k) {
    const ValueId accumulator = terms[k], product = terms[1 - k];
    if (!f.is_main_gradient(accumulator)) continue;
    const std::optional<NodeId> node = f.sole_producer(product, "matmul");
    if (!node || g.inputs(*node)[2].valid()) continue;
    const std::span<const uint32_t> words = g.attr_words(*node);
    return FusionMatch{g.node(*node).op,
                       {g.inputs(*node)[0], g.inputs(*node)[1], accumulator},
                       {words.begin(), words.end()},
                       {{g.output(f.root), 0}},
                       {*node}};
  }
  return std::nullopt;
}

// cast(matmul(a, b)) to f32 -> matmul with wide_output: the sum is not rounded to bf16 on its way.
std::optional<FusionMatch> widen(const FuseArgs& f) {
  const Graph& g = f.graph;
  const std::optional<NodeId> node = f.sole_producer(g.inputs(f.root)[0], "matmul");
  if (!node || g.inputs(*node)[2].valid()) return std::nullopt;
  auto attrs = g.attrs<MatmulAttrs>(*node);
  if (g.type(g.output(*node)).dtype != DType::kBF16 || g.type(g.output(f.root)).dtype != DType::kF32) return std::nullopt;
  attrs.wide_output = 1;
  return FusionMatch{g.node(*node).op, {g.inputs(*node)[0], g.inputs(*node)[1], {}}, to_words(attrs), {{g.output(f.root), 0}}, {*node}};
}

constexpr FusionPattern kFusions[] = {{"cast", widen, true}, {"add", accumulate, true}};

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const int64_t ta : {0, 1}) {
    for (const int64_t tb : {0, 1}) {
      const CaseInput a{ta ? Shape{5, 7} : Shape{7, 5}}, b{tb ? Shape{9, 5} : Shape{5, 9}};
      all.push_back(
          {fmt::format("{}{}", ta ? "A^T" : "A", tb ? " B^T" : " B"), {a, b, {{1}, Fill::kAbsent}}, to_words(MatmulAttrs{ta, tb, 0})});
    }
  }
  all.push_back({"accumulated", {{{7, 5}}, {{5, 9}}, {{7, 9}}}, to_words(MatmulAttrs{})});
  all.push_back(
      {"wide, accumulated", {{{5, 7}}, {{5, 9}}, {{7, 9}, Fill::kNormal, CaseDType::kAccumulation}}, to_words(MatmulAttrs{1, 0, 1})});
  all.push_back({"several tiles", {{{131, 520}}, {{520, 258}}, {{1}, Fill::kAbsent}}, to_words(MatmulAttrs{})});
  return all;
}

}  // namespace

extern const OpDef kMatmul;
constexpr OpDef kMatmul{.name = "matmul",
                        .summary = "accumulator + op(a) * op(b)",
                        .operands = kOperands,
                        .outputs = kOutputs,
                        .attrs = kAttrs,
                        .diff = Diff::kHasVjp,
                        .infer = infer,
                        .vjp = vjp,
                        .fusions = kFusions,
                        .cpu = cpu,
                        .cuda = GLIM_CUDA_KERNEL(cuda::matmul),
                        .cost = cost,
                        .memory = {alias},
                        .precision = Precision::kFollows,
                        .role = Role::kMatmul,
                        .shard = Shard::kContraction,
                        .cases = cases};
static_assert(complete(kMatmul));

}  // namespace glim::ops
