#include "ops/embedding/embedding.h"

#include <limits>

#include "ops/rows.h"
#include "ops/scatter_add_rows/scatter_add_rows.h"

namespace glim::ops {

Result<Types> embedding_types(const TensorType& ids, const TensorType& weight, int64_t padding) {
  GLIM_EXPECT(ids.dtype == DType::kI32 && ids.shape.rank == 1, "ids must be i32[T], not {}", to_string(ids));
  GLIM_EXPECT(is_float(weight.dtype) && weight.shape.rank == 2, "weight must be a floating-point [V, D], not {}", to_string(weight));
  GLIM_EXPECT(padding >= -1 && padding < weight.shape[0], "padding_index {} is no row of the weight, which has {}", padding,
              weight.shape[0]);
  const int64_t dims[] = {ids.shape[0], weight.shape[1]};
  GLIM_ASSIGN(const Shape shape, make_shape(dims));
  return Types{{weight.dtype, shape}};
}

namespace {

constexpr OperandSpec kOperands[] = {{"ids"}, {"weight"}};
constexpr std::string_view kOutputs[] = {"out"};
constexpr AttrSpec kAttrs[] = {integer_attr("padding_index", -1, "row of the weight that gets no gradient; -1 = none")};

Result<Types> infer(const InferArgs& a) { return embedding_types(*a.in[0], *a.in[1], a.attrs<EmbeddingAttrs>().padding_index); }

// out = W[ids];  ct_W = rows of ct added up per id, but none for the padding row
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  return {{}, scatter_add_rows(g, a.cotangents[0], a.in[0], g.type(a.in[1]).shape[0], a.attrs<EmbeddingAttrs>().padding_index)};
}

void cpu(const KernelArgs& k) {
  constexpr int64_t kNoSkip = std::numeric_limits<int64_t>::min();  // no id: one of -1 is out of range and reported
  cpu::check_indices(k.context, k.in[0], k.in[1].type.shape[0], kNoSkip, "embedding", "id");
  cpu::copy_rows(k.context, k.in[1], k.in[0], kNoSkip, k.out[0]);
}

// Reads the rows that are asked for, not the whole table.
Cost cost(const CostArgs& a) {
  Cost cost = moved(a);
  cost.bytes_read = static_cast<double>(a.out[0].bytes() + a.in[0]->bytes());
  return cost;
}

std::vector<OpCase> cases() {
  return {{"plain", {{{7}, Fill::kIndices, CaseDType::kI32, 5}, {{5, 4}}}, to_words(EmbeddingAttrs{-1})},
          {"many tasks", {{{300}, Fill::kIndices, CaseDType::kI32, 17}, {{17, 130}}}, to_words(EmbeddingAttrs{-1})}};
}

}  // namespace

extern const OpDef kEmbedding;
constexpr OpDef kEmbedding{.name = "embedding",
                           .summary = "out[t] = weight[ids[t]]",
                           .operands = kOperands,
                           .outputs = kOutputs,
                           .attrs = kAttrs,
                           .diff = Diff::kHasVjp,
                           .infer = infer,
                           .vjp = vjp,
                           .cpu = cpu,
                           .cuda = GLIM_CUDA_KERNEL(cuda::embedding),
                           .cost = cost,
                           .memory = {no_alias},
                           .precision = Precision::kFollows,
                           .shard = Shard::kRows,
                           .cases = cases};
static_assert(complete(kEmbedding));

}  // namespace glim::ops
