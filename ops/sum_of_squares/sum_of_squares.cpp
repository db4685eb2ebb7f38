#include "ops/sum_of_squares/sum_of_squares.h"

#include "ops/cpu.h"
#include "ops/sum_of_squares/tiles.h"
#include "ops/vector_math.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in", false, true}};
constexpr std::string_view kOutputs[] = {"out"};

Result<Types> infer(const InferArgs& a) {
  GLIM_EXPECT(!a.in.empty(), "needs at least one operand");
  const DType accumulation = accumulation_dtype(a.in[0]->dtype);
  for (const TensorType* type : a.in) {
    GLIM_EXPECT(is_float(type->dtype), "operands must be floating-point, not {}", to_string(type->dtype));
    GLIM_EXPECT(accumulation_dtype(type->dtype) == accumulation, "operands of {} and {} accumulate in different types",
                to_string(a.in[0]->dtype), to_string(type->dtype));
  }
  return Types{{accumulation, Shape{1}}};
}

// Accumulation rule: one f64 partial sum per tile (a few rows, or a part of a long one), added in the order of operands and tiles.
// Squares are taken in f64: no f32 gradient can overflow one.
void cpu(const KernelArgs& k) {
  auto* partials = reinterpret_cast<double*>(k.workspace.data());
  int64_t done = 0;
  for (const TensorView& in : k.in) {
    const Shape& shape = in.type.shape;
    const int64_t tiles = tiles_per_row(shape), rows = rows_per_task(shape);
    cpu::dispatch_float(in.type.dtype, [&](auto tag) {
      using T = typename decltype(tag)::Type;
      k.context.parallel_for(num_tasks(shape), [&](int64_t task) {
        const int64_t begin = task / tiles * rows, end = std::min(shape.rows(), begin + rows);
        const int64_t column = task % tiles * kTile, length = std::min(kTile, shape.last() - column);
        const int64_t stride = shape.rank == 2 ? in.row_stride : shape.last();
        double sum = 0;
        for (int64_t row = begin; row < end; ++row) {
          const T* x = in.as<T>() + row * stride + column;
          sum += cpu::lane_sum<double>(length, [x](int64_t i) {
            const double value = static_cast<double>(x[i]);
            return value * value;
          });
        }
        partials[done + task] = sum;
      });
    });
    done += num_tasks(shape);
  }
  double total = 0;
  for (int64_t i = 0; i < done; ++i) total += partials[i];
  if (k.out[0].type.dtype == DType::kF64)
    *k.out[0].as<double>() = total;
  else
    *k.out[0].as<float>() = static_cast<float>(total);
}

Cost cost(const CostArgs& a) {
  Cost cost = moved(a);
  for (const TensorType* type : a.in) {
    cost.flops += 2 * static_cast<double>(type->shape.numel());
    cost.workspace_bytes += static_cast<size_t>(num_tasks(type->shape)) * sizeof(double);
  }
  return cost;
}

std::vector<OpCase> cases() {
  return {{"one", {{{5, 7}}}, {}}, {"three", {{{4, 3}}, {{9}}, {{2, 3, 4}}}, {}}, {"many tasks", {{{300, 70}}, {{9001}}, {{2, 5000}}}, {}}};
}

}  // namespace

extern const OpDef kSumOfSquares;
constexpr OpDef kSumOfSquares{.name = "sum_of_squares",
                              .summary = "the sum of the squares of all elements of all operands",
                              .operands = kOperands,
                              .outputs = kOutputs,
                              .diff = Diff::kNoVjp,
                              .infer = infer,
                              .cpu = cpu,
                              .cuda = GLIM_CUDA_KERNEL(cuda::sum_of_squares),
                              .cost = cost,
                              .memory = {no_alias},
                              .precision = Precision::kAccumulates,
                              .shard = Shard::kElementwise,
                              .cases = cases};
static_assert(complete(kSumOfSquares));

}  // namespace glim::ops
