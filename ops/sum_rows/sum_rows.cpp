#include "ops/sum_rows/sum_rows.h"

#include "ops/column_sums.h"
#include "ops/fill/fill.h"
#include "ops/linear/linear.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}};
constexpr std::string_view kOutputs[] = {"out"};

Result<Types> infer(const InferArgs& a) {
  const TensorType& in = *a.in[0];
  GLIM_EXPECT(is_float(in.dtype) && in.shape.rank == 2, "operand must be a floating-point [T, N], not {}", to_string(in));
  return Types{{in.dtype, Shape{in.shape[1]}}};
}

// out = sum_t x_t;  every row of ct_x is ct: the bias of a linear whose other operands are zero
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  const TensorType in = g.type(a.in[0]);
  const ValueId zeros = fill(g, {in.dtype, Shape{in.shape[0], 1}}, 0.0), no_weight = fill(g, {in.dtype, Shape{in.shape[1], 1}}, 0.0);
  return {linear(g, zeros, no_weight, a.cotangents[0])};
}

void cpu(const KernelArgs& k) {
  const int64_t num_rows = k.in[0].type.shape[0], width = k.in[0].type.shape[1];
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    auto* partials = reinterpret_cast<double*>(k.workspace.data());
    cpu::column_sums(k.context, num_rows, width, partials, k.out[0].as<T>(), [&](int64_t row, double* sums) {
      const T* x = k.in[0].row<T>(row);
      for (int64_t i = 0; i < width; ++i) sums[i] += static_cast<double>(x[i]);
    });
  });
}

Cost cost(const CostArgs& a) {
  Cost cost = moved(a);
  cost.flops = static_cast<double>(a.in[0]->shape.numel());
  cost.workspace_bytes = cpu::column_sums_bytes(a.in[0]->shape[0], a.in[0]->shape[1]);
  return cost;
}

std::vector<OpCase> cases() { return {{"few rows", {{{7, 5}}}, {}}, {"many tasks", {{{600, 33}}}, {}}}; }

}  // namespace

extern const OpDef kSumRows;
constexpr OpDef kSumRows{.name = "sum_rows",
                         .summary = "the sum of all rows",
                         .operands = kOperands,
                         .outputs = kOutputs,
                         .diff = Diff::kHasVjp,
                         .infer = infer,
                         .vjp = vjp,
                         .cpu = cpu,
                         .cuda = GLIM_CUDA_KERNEL(cuda::sum_rows),
                         .cost = cost,
                         .memory = {no_alias},
                         .precision = Precision::kFollows,
                         .shard = Shard::kRows,
                         .cases = cases};
static_assert(complete(kSumRows));

}  // namespace glim::ops
