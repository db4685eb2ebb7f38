#include "ops/gather_rows/gather_rows.h"

#include "ops/rows.h"
#include "ops/scatter_add_rows/scatter_add_rows.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}, {"indices"}};
constexpr std::string_view kOutputs[] = {"out"};
constexpr AttrSpec kAttrs[] = {integer_attr("skip_index", -1, "an index that stands for a row of zeros")};

Result<Types> infer(const InferArgs& a) {
  const TensorType &in = *a.in[0], &indices = *a.in[1];
  GLIM_EXPECT(is_float(in.dtype) && in.shape.rank == 2, "in must be a floating-point [N, D], not {}", to_string(in));
  GLIM_EXPECT(indices.dtype == DType::kI32 && indices.shape.rank == 1, "indices must be i32[R], not {}", to_string(indices));
  return Types{{in.dtype, Shape{indices.shape[0], in.shape[1]}}};
}

// out = x[indices];  ct_x = rows of ct added up per index
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  return {scatter_add_rows(g, a.cotangents[0], a.in[1], g.type(a.in[0]).shape[0], a.attrs<GatherRowsAttrs>().skip_index), {}};
}

void cpu(const KernelArgs& k) {
  const int64_t skip = k.attrs<GatherRowsAttrs>().skip_index;
  cpu::check_indices(k.context, k.in[1], k.in[0].type.shape[0], skip, "gather_rows", "index");
  cpu::copy_rows(k.context, k.in[0], k.in[1], skip, k.out[0]);
}

// Reads the rows that are asked for, not the whole table.
Cost cost(const CostArgs& a) {
  Cost cost = moved(a);
  cost.bytes_read = static_cast<double>(a.out[0].bytes() + a.in[1]->bytes());
  return cost;
}

std::vector<OpCase> cases() {
  return {{"all", {{{5, 3}}, {{8}, Fill::kIndices, CaseDType::kI32, 5}}, to_words(GatherRowsAttrs{-1})},
          {"index 2 skipped", {{{5, 3}}, {{12}, Fill::kIndices, CaseDType::kI32, 5}}, to_words(GatherRowsAttrs{2})},
          {"many tasks", {{{40, 129}}, {{300}, Fill::kIndices, CaseDType::kI32, 40}}, to_words(GatherRowsAttrs{-1})}};
}

}  // namespace

extern const OpDef kGatherRows;
constexpr OpDef kGatherRows{.name = "gather_rows",
                            .summary = "out[r] = in[indices[r]]",
                            .operands = kOperands,
                            .outputs = kOutputs,
                            .attrs = kAttrs,
                            .diff = Diff::kHasVjp,
                            .infer = infer,
                            .vjp = vjp,
                            .cpu = cpu,
                            .cuda = GLIM_CUDA_KERNEL(cuda::gather_rows),
                            .cost = cost,
                            .memory = {no_alias},
                            .precision = Precision::kFollows,
                            .shard = Shard::kRows,
                            .cases = cases};
static_assert(complete(kGatherRows));

}  // namespace glim::ops
