#include "ops/scatter_add_rows/scatter_add_rows.h"

#include <array>

#include "ops/gather_rows/gather_rows.h"
#include "ops/rows.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}, {"indices"}};
constexpr std::string_view kOutputs[] = {"out"};
constexpr AttrSpec kAttrs[] = {required(integer_attr("num_rows", 0, "rows of the output")),
                               integer_attr("skip_index", -1, "an index whose rows are left out")};

Result<Types> infer(const InferArgs& a) {
  const TensorType &in = *a.in[0], &indices = *a.in[1];
  const int64_t num_rows = a.attrs<ScatterAddRowsAttrs>().num_rows;
  GLIM_EXPECT(is_float(in.dtype) && in.shape.rank == 2, "in must be a floating-point [R, D], not {}", to_string(in));
  GLIM_EXPECT(indices.dtype == DType::kI32 && indices.shape.rank == 1 && indices.shape[0] == in.shape[0], "indices must be i32[{}], not {}",
              in.shape[0], to_string(indices));
  const int64_t dims[] = {num_rows, in.shape[1]};
  GLIM_ASSIGN(const Shape shape, make_shape(dims));
  return Types{{in.dtype, shape}};
}

// out = sum of rows per index;  ct_x = ct[indices]
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  return {gather_rows(g, a.cotangents[0], a.in[1], a.attrs<ScatterAddRowsAttrs>().skip_index), {}};
}

// Accumulation rule: every output row is summed by one task, over its input rows in order, in f64.
void cpu(const KernelArgs& k) {
  const auto attrs = k.attrs<ScatterAddRowsAttrs>();
  const int64_t num_rows = attrs.num_rows, skip = attrs.skip_index;
  const auto* index = k.in[1].as<int32_t>();
  const int64_t num_in = k.in[0].type.shape[0], width = k.out[0].type.shape[1];
  cpu::check_indices(k.context, k.in[1], num_rows, skip, "scatter_add_rows", "index");
  const auto used = [&](int64_t r) { return cpu::in_range(index[r], num_rows) && index[r] != skip; };
  // Counting sort: order[first[n] .. first[n + 1]) are the input rows of output row n.
  auto* first = reinterpret_cast<int32_t*>(k.workspace.data());
  int32_t* order = first + num_rows + 1;
  std::fill_n(first, num_rows + 1, 0);
  for (int64_t r = 0; r < num_in; ++r) {
    if (used(r)) ++first[index[r] + 1];
  }
  for (int64_t n = 0; n < num_rows; ++n) first[n + 1] += first[n];
  for (int64_t r = 0; r < num_in; ++r) {
    if (used(r)) order[first[index[r]]++] = static_cast<int32_t>(r);
  }
  // The second sweep moved every first[n] to where first[n + 1] was.
  const auto begin_of = [&](int64_t n) { return n == 0 ? 0 : first[n - 1]; };

  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    constexpr int64_t kBlock = 256;
    cpu::for_row_ranges(k.context, num_rows, width, [&](int64_t begin, int64_t end) {
      std::array<double, kBlock> sum;
      for (int64_t n = begin; n < end; ++n) {
        for (int64_t column = 0; column < width; column += kBlock) {
          const int64_t length = std::min(kBlock, width - column);
          sum.fill(0);
          for (int64_t s = begin_of(n); s < first[n]; ++s) {
            const T* from = k.in[0].row<T>(order[s]) + column;
            for (int64_t i = 0; i < length; ++i) sum[i] += static_cast<double>(from[i]);
          }
          T* to = k.out[0].row<T>(n) + column;
          for (int64_t i = 0; i < length; ++i) to[i] = T(sum[i]);
        }
      }
    });
  });
}

Cost cost(const CostArgs& a) {
  Cost cost = moved(a);
  cost.flops = static_cast<double>(a.in[0]->shape.numel());
  cost.workspace_bytes = sizeof(int32_t) * static_cast<size_t>(a.out[0].shape[0] + 1 + a.in[1]->shape[0]);
  return cost;
}

std::vector<OpCase> cases() {
  return {{"all", {{{8, 3}}, {{8}, Fill::kIndices, CaseDType::kI32, 5}}, to_words(ScatterAddRowsAttrs{5, -1})},
          {"index 0 skipped", {{{12, 3}}, {{12}, Fill::kIndices, CaseDType::kI32, 4}}, to_words(ScatterAddRowsAttrs{6, 0})},
          {"many tasks", {{{300, 300}}, {{300}, Fill::kIndices, CaseDType::kI32, 140}}, to_words(ScatterAddRowsAttrs{140, -1})}};
}

}  // namespace

extern const OpDef kScatterAddRows;
constexpr OpDef kScatterAddRows{.name = "scatter_add_rows",
                                .summary = "out[n] = sum of in[r] over the r with indices[r] == n",
                                .operands = kOperands,
                                .outputs = kOutputs,
                                .attrs = kAttrs,
                                .diff = Diff::kHasVjp,
                                .infer = infer,
                                .vjp = vjp,
                                .cpu = cpu,
                                .cuda = GLIM_CUDA_KERNEL(cuda::scatter_add_rows),
                                .cost = cost,
                                .memory = {no_alias},
                                .precision = Precision::kFollows,
                                .shard = Shard::kRows,
                                .cases = cases};
static_assert(complete(kScatterAddRows));

}  // namespace glim::ops
