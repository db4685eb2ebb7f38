#include "ops/scatter_add_rows/scatter_add_rows.h"

#include <array>

#include "engine/passes/fuse.h"
#include "ops/cast/cast.h"
#include "ops/gather_rows/gather_rows.h"
#include "ops/rows.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}, {"indices"}, {"accumulator", true}};
constexpr std::string_view kOutputs[] = {"out"};
constexpr AttrSpec kAttrs[] = {required(integer_attr("num_rows", 0, "rows of the output")),
                               integer_attr("skip_index", -1, "an index whose rows are left out"),
                               bool_attr("wide_output", false, "the result has the accumulation type")};

Result<Types> infer(const InferArgs& a) {
  const TensorType &in = *a.in[0], &indices = *a.in[1];
  const auto [num_rows, skip_index, wide_output] = a.attrs<ScatterAddRowsAttrs>();
  GLIM_EXPECT(is_float(in.dtype) && in.shape.rank == 2, "in must be a floating-point [R, D], not {}", to_string(in));
  GLIM_EXPECT(indices.dtype == DType::kI32 && indices.shape.rank == 1 && indices.shape[0] == in.shape[0], "indices must be i32[{}], not {}",
              in.shape[0], to_string(indices));
  const int64_t dims[] = {num_rows, in.shape[1]};
  GLIM_ASSIGN(const Shape shape, make_shape(dims));
  const TensorType out{wide_output != 0 ? accumulation_dtype(in.dtype) : in.dtype, shape};
  if (a.in[2] != nullptr) GLIM_EXPECT(*a.in[2] == out, "the accumulator must be {}, not {}", to_string(out), to_string(*a.in[2]));
  return Types{out};
}

// out = acc + sum of rows per index;  ct_x = ct[indices], ct_acc = ct
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  const ValueId rows = gather_rows(g, a.cotangents[0], a.in[1], a.attrs<ScatterAddRowsAttrs>().skip_index);
  return {cast(g, rows, g.type(a.in[0]).dtype), {}, a.in[2].valid() ? a.cotangents[0] : ValueId{}};
}

// Accumulation rule: every output row is summed by one task: its input rows in order, in f64, then the accumulator is added.
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

  const TensorView& accumulator = k.in[2];
  cpu::dispatch_float(k.in[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto sum_rows = [&]<class Out>(Out*) {
      constexpr int64_t kBlock = 256;
      cpu::for_row_ranges(k.context, num_rows, width, [&](int64_t begin, int64_t end) {
        std::array<double, kBlock> sum;
        for (int64_t n = begin; n < end; ++n) {
          // The plan makes accumulator and output one buffer; only a caller without a plan passes two.
          if (accumulator.present() && accumulator.data == k.out[0].data && begin_of(n) == first[n]) continue;
          for (int64_t column = 0; column < width; column += kBlock) {
            const int64_t length = std::min(kBlock, width - column);
            sum.fill(0);
            for (int64_t s = begin_of(n); s < first[n]; ++s) {
              const T* from = k.in[0].row<T>(order[s]) + column;
              for (int64_t i = 0; i < length; ++i) sum[i] += static_cast<double>(from[i]);
            }
            const Out* old = accumulator.present() ? accumulator.row<Out>(n) + column : nullptr;
            Out* to = k.out[0].row<Out>(n) + column;
            for (int64_t i = 0; i < length; ++i) to[i] = Out(old != nullptr ? sum[i] + static_cast<double>(old[i]) : sum[i]);
          }
        }
      });
    };
    if (k.out[0].type.dtype == k.in[0].type.dtype)
      sum_rows(static_cast<T*>(nullptr));
    else
      sum_rows(static_cast<cpu::Accumulate<T>*>(nullptr));
  });
}

Cost cost(const CostArgs& a) {
  Cost cost = moved(a);
  cost.flops = static_cast<double>(a.in[0]->shape.numel());
  cost.workspace_bytes = sizeof(int32_t) * static_cast<size_t>(std::max(a.out[0].shape[0] + 1, a.in[1]->shape[0]) + a.in[1]->shape[0]);
  return cost;
}

AliasFact alias(const InferArgs& a, uint16_t) { return a.in[2] != nullptr ? AliasFact{AliasKind::kMust, 2} : AliasFact{}; }

// Not yet an accumulation.
std::optional<NodeId> plain_sum(const FuseArgs& f, ValueId v) {
  const std::optional<NodeId> node = f.sole_producer(v, "scatter_add_rows");
  return node && !f.graph.inputs(*node)[2].valid() ? node : std::nullopt;
}

// add(accumulator, scatter_add_rows(x)) -> scatter_add_rows(x, accumulator), where the accumulator is main-gradient state that nothing else
// reads: only the rows that have an index are touched.
std::optional<FusionMatch> accumulate(const FuseArgs& f) {
  const Graph& g = f.graph;
  const std::span<const ValueId> terms = g.inputs(f.root);
  for (size_t k = 0; k < 2; ++k) {
    if (!f.is_main_gradient(terms[k])) continue;
    const std::optional<NodeId> node = plain_sum(f, terms[1 - k]);
    if (!node) continue;
    const std::span<const uint32_t> words = g.attr_words(*node);
    return FusionMatch{g.node(*node).op,
                       {g.inputs(*node)[0], g.inputs(*node)[1], terms[k]},
                       {words.begin(), words.end()},
                       {{g.output(f.root), 0}},
                       {*node}};
  }
  return std::nullopt;
}

// cast(scatter_add_rows(x)) to f32 -> scatter_add_rows with wide_output: the sum is not rounded to bf16 on its way.
std::optional<FusionMatch> widen(const FuseArgs& f) {
  const Graph& g = f.graph;
  const std::optional<NodeId> node = plain_sum(f, g.inputs(f.root)[0]);
  if (!node || g.type(g.output(*node)).dtype != DType::kBF16 || g.type(g.output(f.root)).dtype != DType::kF32) return std::nullopt;
  auto attrs = g.attrs<ScatterAddRowsAttrs>(*node);
  attrs.wide_output = 1;
  return FusionMatch{g.node(*node).op, {g.inputs(*node)[0], g.inputs(*node)[1], {}}, to_words(attrs), {{g.output(f.root), 0}}, {*node}};
}
constexpr FusionPattern kFusions[] = {{"cast", widen, true}, {"add", accumulate, true}};

std::vector<OpCase> cases() {
  const CaseInput none{{}, Fill::kAbsent};
  const auto indices = [](int64_t rows, int64_t limit) { return CaseInput{{rows}, Fill::kIndices, CaseDType::kI32, limit}; };
  return {{"all", {{{8, 3}}, indices(8, 5), none}, to_words(ScatterAddRowsAttrs{5, -1})},
          {"index 0 skipped", {{{12, 3}}, indices(12, 4), none}, to_words(ScatterAddRowsAttrs{6, 0})},
          {"accumulated", {{{8, 3}}, indices(8, 5), {{9, 3}}}, to_words(ScatterAddRowsAttrs{9, -1})},
          {"wide, accumulated",
           {{{12, 4}}, indices(12, 5), {{9, 4}, Fill::kNormal, CaseDType::kAccumulation}},
           to_words(ScatterAddRowsAttrs{9, 2, 1})},
          {"wide", {{{12, 8}}, indices(12, 5), none}, to_words(ScatterAddRowsAttrs{9, -1, 1})},
          {"many tasks", {{{300, 300}}, indices(300, 140), none}, to_words(ScatterAddRowsAttrs{140, -1})}};
}

}  // namespace

extern const OpDef kScatterAddRows;
constexpr OpDef kScatterAddRows{.name = "scatter_add_rows",
                                .summary = "out[n] = accumulator[n] + sum of in[r] over the r with indices[r] == n",
                                .operands = kOperands,
                                .outputs = kOutputs,
                                .attrs = kAttrs,
                                .diff = Diff::kHasVjp,
                                .infer = infer,
                                .vjp = vjp,
                                .fusions = kFusions,
                                .cpu = cpu,
                                .cuda = GLIM_CUDA_KERNEL(cuda::scatter_add_rows),
                                .cost = cost,
                                .memory = {alias},
                                .precision = Precision::kFollows,
                                .shard = Shard::kRows,
                                .cases = cases};
static_assert(complete(kScatterAddRows));

}  // namespace glim::ops
