#include "ops/embedding_norm/embedding_norm.h"

#include <limits>

#include "engine/passes/fuse.h"
#include "ops/embedding/embedding.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rms_norm/row_norm.h"
#include "ops/rows.h"
#include "ops/scatter_add_rows/scatter_add_rows.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"ids"}, {"weight"}}, kVjpOperands[] = {{"ids"}, {"weight"}, {"ct"}};
constexpr std::string_view kOutputs[] = {"out"}, kVjpOutputs[] = {"ct_rows"};
constexpr AttrSpec kAttrs[] = {integer_attr("padding_index", -1, "row of the weight that gets no gradient; -1 = none"),
                               required(real_attr("eps", 0, "added to the mean square, > 0"))};
constexpr int64_t kNoSkip = std::numeric_limits<int64_t>::min();  // no id: one of -1 is out of range and reported

Result<Types> infer(const InferArgs& a) {
  const auto [padding, eps] = a.attrs<EmbeddingNormAttrs>();
  GLIM_EXPECT(eps > 0 && std::isfinite(eps), "eps must be positive, not {}", eps);
  return embedding_types(*a.in[0], *a.in[1], padding);
}

// out = n(W[ids]);  ct_W = rows of n^T ct added up per id, but none for the padding row
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  const auto attrs = a.attrs<EmbeddingNormAttrs>();
  const ValueId rows = emit_value(g, "embedding_norm_vjp", {a.in[0], a.in[1], a.cotangents[0]}, attrs);
  return {{}, scatter_add_rows(g, rows, a.in[0], g.type(a.in[1]).shape[0], attrs.padding_index)};
}

std::vector<ValueId> decompose(Graph& g, std::span<const ValueId> in, std::span<const uint32_t> words) {
  const auto [padding, eps] = from_words<EmbeddingNormAttrs>(words);
  return {rms_norm(g, embedding(g, in[0], in[1], padding), {}, eps)};
}

// rms_norm(embedding(ids, weight)) without a weight of its own, when nothing else reads the rows.
std::optional<FusionMatch> fuse(const FuseArgs& f) {
  const Graph& g = f.graph;
  const auto norm = g.attrs<RmsNormAttrs>(f.root);
  const std::span<const ValueId> in = g.inputs(f.root);
  const std::optional<NodeId> rows = f.sole_producer(in[0], "embedding");
  if (!rows || in[1].valid() || norm.group != 0) return std::nullopt;
  const std::span<const ValueId> of_rows = g.inputs(*rows);
  return FusionMatch{.op = *g.table().find("embedding_norm"),
                     .operands = {of_rows[0], of_rows[1]},
                     .attr_words = to_words(EmbeddingNormAttrs{g.attrs<EmbeddingAttrs>(*rows).padding_index, norm.eps}),
                     .replaced = {{g.output(f.root), uint16_t{0}}},
                     .interior = {*rows}};
}
constexpr FusionPattern kFusions[] = {{"rms_norm", fuse}};

// Calls body(row, that row of the table or null) for every id.
template <class T, class Body>
void for_looked_up(const KernelArgs& k, Body&& body) {
  const TensorView &ids = k.in[0], &table = k.in[1];
  cpu::for_row_ranges(k.context, ids.type.shape[0], table.type.shape[1], [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int32_t id = ids.as<int32_t>()[row];
      body(row, cpu::in_range(id, table.type.shape[0]) ? table.row<T>(id) : nullptr);
    }
  });
}

void cpu(const KernelArgs& k) {
  cpu::check_indices(k.context, k.in[0], k.in[1].type.shape[0], kNoSkip, "embedding_norm", "id");
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    const int64_t n = k.out[0].type.shape[1];
    const double eps = k.attrs<EmbeddingNormAttrs>().eps;
    for_looked_up<T>(k, [&](int64_t row, const T* x) {
      T* const out = k.out[0].row<T>(row);
      if (x == nullptr) return std::fill_n(out, n, T(A(0))), void();
      const A r = cpu::reciprocal_rms(x, n, eps);
      GLIM_ELEMENTWISE
      for (int64_t i = 0; i < n; ++i) out[i] = T(static_cast<A>(x[i]) * r);
    });
  });
}

std::vector<OpCase> cases() {
  return {{"plain", {{{7}, Fill::kIndices, CaseDType::kI32, 5}, {{5, 4}}}, to_words(EmbeddingNormAttrs{-1, 1e-5})},
          {"many tasks", {{{300}, Fill::kIndices, CaseDType::kI32, 17}, {{17, 130}}}, to_words(EmbeddingNormAttrs{-1, 1e-5})},
          {"long rows", {{{5}, Fill::kIndices, CaseDType::kI32, 3}, {{3, 1544}}}, to_words(EmbeddingNormAttrs{-1, 1e-5})}};
}

Result<Types> vjp_infer(const InferArgs& a) {
  GLIM_ASSIGN(Types types, infer(a));
  GLIM_EXPECT(*a.in[2] == types[0], "ct must be {}, not {}", to_string(types[0]), to_string(*a.in[2]));
  return types;
}

std::vector<ValueId> vjp_decompose(Graph& g, std::span<const ValueId> in, std::span<const uint32_t> words) {
  const auto [padding, eps] = from_words<EmbeddingNormAttrs>(words);
  return {emit_value(g, "rms_norm_vjp", {embedding(g, in[0], in[1], padding), {}, in[2]}, RmsNormAttrs{eps, 0, 0})};
}

void vjp_cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    const int64_t n = k.out[0].type.shape[1];
    const double eps = k.attrs<EmbeddingNormAttrs>().eps;
    for_looked_up<T>(k, [&](int64_t row, const T* x) {
      T* const out = k.out[0].row<T>(row);
      const T* const ct = k.in[2].row<T>(row);
      if (x == nullptr) return std::fill_n(out, n, T(A(0))), void();
      const A r = cpu::reciprocal_rms(x, n, eps);
      const A mean = cpu::mean_of_products(
          x, [&](int64_t i) { return static_cast<A>(ct[i]); }, cpu::NormWeight<T>{nullptr, A(0)}, r, n);
      GLIM_ELEMENTWISE
      for (int64_t i = 0; i < n; ++i) out[i] = T(r * (static_cast<A>(ct[i]) - static_cast<A>(x[i]) * r * mean));
    });
  });
}

// Reads the rows that are asked for, not the whole table.
Cost cost_of_rows(const CostArgs& a, double flops_per_element) {
  Cost cost = moved(a);
  cost.flops = flops_per_element * static_cast<double>(a.out[0].shape.numel());
  cost.bytes_read -= static_cast<double>(a.in[1]->bytes()) - static_cast<double>(a.out[0].bytes());
  return cost;
}
Cost cost(const CostArgs& a) { return cost_of_rows(a, 4); }
Cost vjp_cost(const CostArgs& a) { return cost_of_rows(a, 9); }

AliasFact vjp_alias(const InferArgs&, uint16_t) { return {AliasKind::kInPlace, 2}; }

std::vector<OpCase> vjp_cases() {
  std::vector<OpCase> all = cases();
  for (OpCase& each : all) each.inputs.push_back({{each.inputs[0].shape[0], each.inputs[1].shape[1]}});
  return all;
}

}  // namespace

extern const OpDef kEmbeddingNorm, kEmbeddingNormVjp;
constexpr OpDef kEmbeddingNorm{.name = "embedding_norm",
                               .summary = "out[t] = rms_norm(weight[ids[t]])",
                               .operands = kOperands,
                               .outputs = kOutputs,
                               .attrs = kAttrs,
                               .diff = Diff::kHasVjp,
                               .infer = infer,
                               .vjp = vjp,
                               .decompose = decompose,
                               .fusions = kFusions,
                               .cpu = cpu,
                               .cuda = GLIM_CUDA_KERNEL(cuda::embedding_norm),
                               .cost = cost,
                               .memory = {no_alias},
                               .precision = Precision::kFollows,
                               .shard = Shard::kRows,
                               .cases = cases};
static_assert(complete(kEmbeddingNorm));

constexpr OpDef kEmbeddingNormVjp{.name = "embedding_norm_vjp",
                                  .summary = "cotangent of the looked-up rows in embedding_norm",
                                  .operands = kVjpOperands,
                                  .outputs = kVjpOutputs,
                                  .attrs = kAttrs,
                                  .diff = Diff::kNoVjp,
                                  .infer = vjp_infer,
                                  .decompose = vjp_decompose,
                                  .cpu = vjp_cpu,
                                  .cuda = GLIM_CUDA_KERNEL(cuda::embedding_norm_vjp),
                                  .cost = vjp_cost,
                                  .memory = {vjp_alias},
                                  .precision = Precision::kFollows,
                                  .shard = Shard::kRows,
                                  .cases = vjp_cases};
static_assert(complete(kEmbeddingNormVjp));

}  // namespace glim::ops
