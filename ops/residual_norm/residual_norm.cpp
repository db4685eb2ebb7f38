#include "ops/residual_norm/residual_norm.h"

#include "engine/passes/fuse.h"
#include "ops/add/add.h"
#include "ops/column_sums.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rms_norm/row_norm.h"

namespace glim::ops {

ResidualNorm residual_norm(Graph& g, ValueId in, ValueId branch, ValueId weight, ValueId next_weight, const ResidualNormAttrs& attrs) {
  const NodeId node = emit(g, "residual_norm", {in, branch, weight, next_weight}, attrs);
  return {g.output(node, 0), attrs.next_eps > 0 ? g.output(node, 1) : ValueId{}};
}

namespace {

constexpr OperandSpec kOperands[] = {{"in"}, {"branch"}, {"weight", true}, {"next_weight", true}};
constexpr std::string_view kOutputs[] = {"out", "normed"};
constexpr AttrSpec kAttrs[] = {required(real_attr("eps", 0, "added to the mean square of the branch, > 0")),
                               real_attr("weight_offset", 0, "added to the weight: 1 for a centered norm"),
                               real_attr("next_eps", 0, "added to the mean square of the sum; 0 = no second norm"),
                               real_attr("next_weight_offset", 0, "added to the second norm's weight")};

Result<Types> infer(const InferArgs& a) {
  const TensorType &in = *a.in[0], &branch = *a.in[1];
  const auto attrs = a.attrs<ResidualNormAttrs>();
  GLIM_EXPECT(is_float(in.dtype) && in.shape.rank == 2, "in must be a floating-point [T, W], not {}", to_string(in));
  GLIM_EXPECT(branch == in, "branch must be {}, not {}", to_string(in), to_string(branch));
  GLIM_EXPECT(attrs.eps > 0 && std::isfinite(attrs.eps), "eps must be positive, not {}", attrs.eps);
  GLIM_EXPECT(attrs.next_eps >= 0 && std::isfinite(attrs.next_eps), "next_eps must not be negative, but is {}", attrs.next_eps);
  GLIM_EXPECT(std::isfinite(attrs.weight_offset) && std::isfinite(attrs.next_weight_offset), "weight offsets must be finite, not {} and {}",
              attrs.weight_offset, attrs.next_weight_offset);
  const TensorType weight{in.dtype, Shape{in.shape[1]}};
  GLIM_EXPECT(a.in[2] == nullptr || *a.in[2] == weight, "weight must be {}, not {}", to_string(weight), to_string(*a.in[2]));
  GLIM_EXPECT(a.in[3] == nullptr || *a.in[3] == weight, "next_weight must be {}, not {}", to_string(weight), to_string(*a.in[3]));
  GLIM_EXPECT(a.in[3] == nullptr || attrs.next_eps > 0, "next_weight is of no use without a second norm (next_eps 0)");
  return attrs.next_eps > 0 ? Types{in, in} : Types{in};
}

// out = x + n(y), normed = n'(out);  ct_x = ct_out + (n')^T ct_normed, ct_y = n^T ct_x. Saved are y and out, which the forward pass writes
// anyway: the backward pass has to read both for its products, and their mean squares come with that.
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  const auto attrs = a.attrs<ResidualNormAttrs>();
  const ValueId ct_normed = a.cotangents.size() > 1 ? a.cotangents[1] : ValueId{};
  if (!ct_normed.valid()) {
    const NodeId node = emit(g, "rms_norm_vjp", {a.in[1], a.in[2], a.cotangents[0]}, RmsNormAttrs{attrs.eps, attrs.weight_offset, 0});
    return {a.cotangents[0], g.output(node), a.in[2].valid() ? g.output(node, 1) : ValueId{}, {}};
  }
  const NodeId node = emit(g, "residual_norm_vjp", {a.out[0], a.in[1], a.in[2], a.in[3], ct_normed, a.cotangents[0]}, attrs);
  uint32_t next = 2;
  const ValueId ct_weight = a.in[2].valid() ? g.output(node, next++) : ValueId{};
  return {g.output(node, 0), g.output(node, 1), ct_weight, a.in[3].valid() ? g.output(node, next) : ValueId{}};
}

std::vector<ValueId> decompose(Graph& g, std::span<const ValueId> in, std::span<const uint32_t> words) {
  const auto attrs = from_words<ResidualNormAttrs>(words);
  const ValueId out = add(g, in[0], rms_norm(g, in[1], in[2], attrs.eps, attrs.weight_offset));
  if (attrs.next_eps == 0) return {out};
  return {out, rms_norm(g, out, in[3], attrs.next_eps, attrs.next_weight_offset)};
}

// add(x, rms_norm(y)), whichever side the norm is on, when nothing else reads the norm.
struct Sum {
  ValueId in;
  NodeId norm;
};
std::optional<Sum> normed_sum(const FuseArgs& f, NodeId node) {
  const std::span<const ValueId> terms = f.graph.inputs(node);
  for (const size_t k : {1, 0}) {
    const std::optional<NodeId> norm = f.sole_producer(terms[k], "rms_norm");
    if (norm && f.graph.attrs<RmsNormAttrs>(*norm).group == 0) return Sum{terms[1 - k], *norm};
  }
  return std::nullopt;
}

FusionMatch match_of(const FuseArgs& f, const Sum& sum, ValueId next_weight, double next_eps, double next_weight_offset) {
  const auto norm = f.graph.attrs<RmsNormAttrs>(sum.norm);
  const std::span<const ValueId> branch = f.graph.inputs(sum.norm);
  return {.op = *f.graph.table().find("residual_norm"),
          .operands = {sum.in, branch[0], branch[1], next_weight},
          .attr_words = to_words(ResidualNormAttrs{norm.eps, norm.weight_offset, next_eps, next_weight_offset}),
          .replaced = {},
          .interior = {sum.norm}};
}

// rms_norm(add(x, rms_norm(y))). Others may read the sum. Not where the second norm is another layer's: its result would then have to be
// kept from layer to layer, where the sum alone is enough to compute it again.
std::optional<FusionMatch> with_next(const FuseArgs& f) {
  const Graph& g = f.graph;
  const ValueId out = g.inputs(f.root)[0];
  const NodeId node = g.producer(out);
  const auto next = g.attrs<RmsNormAttrs>(f.root);
  if (g.def(node).name != "add" || next.group != 0 || g.origin(node).path != g.origin(f.root).path) return std::nullopt;
  const std::optional<Sum> sum = normed_sum(f, node);
  if (!sum) return std::nullopt;
  FusionMatch match = match_of(f, *sum, g.inputs(f.root)[1], next.eps, next.weight_offset);
  match.replaced = {{out, uint16_t{0}}, {g.output(f.root), uint16_t{1}}};
  match.interior.push_back(node);
  return match;
}

// add(x, rms_norm(y)), where with_next found nothing.
std::optional<FusionMatch> without_next(const FuseArgs& f) {
  const std::optional<Sum> sum = normed_sum(f, f.root);
  if (!sum) return std::nullopt;
  FusionMatch match = match_of(f, *sum, {}, 0, 0);
  match.replaced = {{f.graph.output(f.root), uint16_t{0}}};
  return match;
}
constexpr FusionPattern kFusions[] = {{"rms_norm", with_next}, {"add", without_next}};

void cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    const auto attrs = k.attrs<ResidualNormAttrs>();
    const int64_t n = k.out[0].type.shape[1];
    const cpu::NormWeight<T> w{k.in[2].as<T>(), static_cast<A>(attrs.weight_offset)},
        next_w{k.in[3].as<T>(), static_cast<A>(attrs.next_weight_offset)};
    cpu::for_row_ranges(k.context, k.out[0].type.shape[0], n, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T *x = k.in[0].row<T>(row), *y = k.in[1].row<T>(row);
        T* out = k.out[0].row<T>(row);
        const A r = cpu::reciprocal_rms(y, n, attrs.eps);
        GLIM_ELEMENTWISE
        for (int64_t i = 0; i < n; ++i) out[i] = T(static_cast<A>(x[i]) + static_cast<A>(y[i]) * r * w(i));
        if (attrs.next_eps == 0) continue;
        T* normed = k.out[1].row<T>(row);
        const A next_r = cpu::reciprocal_rms(out, n, attrs.next_eps);
        GLIM_ELEMENTWISE
        for (int64_t i = 0; i < n; ++i) normed[i] = T(static_cast<A>(out[i]) * next_r * next_w(i));
      }
    });
  });
}

// out may overwrite in, normed the branch.
AliasFact alias(const InferArgs&, uint16_t output) { return {AliasKind::kInPlace, output}; }

constexpr double kEps = 1e-5;

std::vector<OpCase> cases() {
  const CaseInput none{{}, Fill::kAbsent};
  return {{"both norms", {{{4, 6}}, {{4, 6}}, {{6}}, {{6}}}, to_words(ResidualNormAttrs{1e-8, 1, kEps, 1})},
          {"scaleless", {{{4, 6}}, {{4, 6}}, none, none}, to_words(ResidualNormAttrs{kEps, 0, kEps, 0})},
          {"first scaled", {{{4, 6}}, {{4, 6}}, {{6}}, none}, to_words(ResidualNormAttrs{kEps, 0, kEps, 0})},
          {"second scaled", {{{4, 6}}, {{4, 6}}, none, {{6}}}, to_words(ResidualNormAttrs{kEps, 0, kEps, 1})},
          {"one norm", {{{4, 6}}, {{4, 6}}, {{6}}, none}, to_words(ResidualNormAttrs{kEps, 1, 0, 0})},
          {"many tasks", {{{300, 160}}, {{300, 160}}, {{160}}, {{160}}}, to_words(ResidualNormAttrs{kEps, 1, kEps, 0})},
          {"long rows", {{{5, 1544}}, {{5, 1544}}, {{1544}}, {{1544}}}, to_words(ResidualNormAttrs{kEps, 1, kEps, 1})}};
}

constexpr OperandSpec kVjpOperands[] = {{"out"}, {"branch"}, {"weight", true}, {"next_weight", true}, {"ct_normed"}, {"ct_out", true}};
constexpr std::string_view kVjpOutputs[] = {"ct_in", "ct_branch", "ct_weights"};

Result<Types> vjp_infer(const InferArgs& a) {
  GLIM_ASSIGN(Types types, infer(a));
  GLIM_EXPECT(types.size() == 2, "without a second norm (next_eps 0) this is rms_norm_vjp");
  for (const size_t k : {4, 5})
    GLIM_EXPECT(a.in[k] == nullptr || *a.in[k] == types[0], "cotangents must be {}, not {}", to_string(types[0]), to_string(*a.in[k]));
  for (const size_t k : {2, 3}) {
    if (a.in[k] != nullptr) types.push_back(*a.in[k]);
  }
  return types;
}

// One row; sums and next_sums (the weights' cotangents so far) are null where there is no weight, ct_out may be null.
template <class T, class A = cpu::Accumulate<T>>
struct RowVjp {
  const ResidualNormAttrs attrs;
  const int64_t n;
  const cpu::NormWeight<T> w, next_w;

  void operator()(const T* out, const T* y, const T* ct_normed, const T* ct_out, T* ct_in, T* ct_branch, double* sums,
                  double* next_sums) const {
    const auto value = [](const T* x, int64_t i) { return static_cast<A>(x[i]); };
    const A next_r = cpu::reciprocal_rms(out, n, attrs.next_eps);
    const A next_mean = cpu::mean_of_products(
        out, [&](int64_t i) { return value(ct_normed, i); }, next_w, next_r, n);
    const auto cotangent = [&](int64_t i) {  // of in; not rounded between the norms
      const A through = next_r * (value(ct_normed, i) * next_w(i) - value(out, i) * next_r * next_mean);
      return ct_out == nullptr ? through : value(ct_out, i) + through;
    };
    const A r = cpu::reciprocal_rms(y, n, attrs.eps);
    const A mean = cpu::mean_of_products(y, cotangent, w, r, n);
    for (int64_t i = 0; next_sums != nullptr && i < n; ++i)
      next_sums[i] += static_cast<double>(value(ct_normed, i) * (value(out, i) * next_r));
    for (int64_t i = 0; sums != nullptr && i < n; ++i) sums[i] += static_cast<double>(cotangent(i) * (value(y, i) * r));
    GLIM_ELEMENTWISE
    for (int64_t i = 0; i < n; ++i) {  // all reads come before the writes, which may lie on top of them
      const A ct = cotangent(i);
      const A of_branch = r * (ct * w(i) - value(y, i) * r * mean);
      ct_in[i] = T(ct);
      ct_branch[i] = T(of_branch);
    }
  }
};

void vjp_cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    const auto attrs = k.attrs<ResidualNormAttrs>();
    const int64_t n = k.out[0].type.shape[1];
    const bool has_weight = k.in[2].present(), has_next = k.in[3].present(), has_ct = k.in[5].present();
    const RowVjp<T> row_vjp{
        attrs, n, {k.in[2].as<T>(), static_cast<A>(attrs.weight_offset)}, {k.in[3].as<T>(), static_cast<A>(attrs.next_weight_offset)}};
    const int64_t first_next = has_weight ? n : 0;
    cpu::column_sums(
        k.context, k.out[0].type.shape[0], first_next + (has_next ? n : 0), reinterpret_cast<double*>(k.workspace.data()),
        [&](int64_t row, double* sums) {
          row_vjp(k.in[0].row<T>(row), k.in[1].row<T>(row), k.in[4].row<T>(row), has_ct ? k.in[5].row<T>(row) : nullptr,
                  k.out[0].row<T>(row), k.out[1].row<T>(row), has_weight ? sums : nullptr, has_next ? sums + first_next : nullptr);
        },
        [&](int64_t i, double sum) { (i < first_next ? k.out[2].as<T>() + i : k.out.back().as<T>() + (i - first_next))[0] = T(sum); });
  });
}

Cost vjp_cost(const CostArgs& a) {
  Cost cost = per_element<24>(a);
  const int64_t rows = a.in[0]->shape[0], n = a.in[0]->shape[1];
  const int64_t width = n * ((a.in[2] != nullptr ? 1 : 0) + (a.in[3] != nullptr ? 1 : 0));
  const size_t on_gpu = static_cast<size_t>(num_cuda_chunks(rows, n) * width) * size_of(accumulation_dtype(a.in[0]->dtype));
  cost.workspace_bytes = std::max(cpu::column_sums_bytes(rows, width), on_gpu);
  return cost;
}

// ct_in may overwrite ct_out, ct_branch may overwrite ct_normed.
AliasFact vjp_alias(const InferArgs& a, uint16_t output) {
  if (output == 0 && a.in[5] != nullptr) return {AliasKind::kInPlace, 5};
  return output == 1 ? AliasFact{AliasKind::kInPlace, 4} : AliasFact{};
}

std::vector<OpCase> vjp_cases() {
  const CaseInput none{{}, Fill::kAbsent};
  const auto build = [&](const Shape& shape, bool has_weight, bool has_next, bool has_ct) {
    const CaseInput rows{shape}, weight{{shape[1]}};
    return std::vector<CaseInput>{rows, rows, has_weight ? weight : none, has_next ? weight : none, rows, has_ct ? rows : none};
  };
  // Large, so that the derivative of a row of one element is no difference of equal numbers.
  const auto words = to_words(ResidualNormAttrs{0.25, 1, 0.5, 1});
  return {{"both norms", build({4, 6}, true, true, true), words},
          {"scaleless", build({4, 6}, false, false, true), to_words(ResidualNormAttrs{0.5, 0, 0.25, 0})},
          {"first scaled", build({4, 6}, true, false, true), words},
          {"second scaled", build({4, 6}, false, true, true), words},
          {"of normed alone", build({4, 6}, true, true, false), words},
          {"many tasks", build({300, 160}, true, true, true), words},
          {"long rows", build({5, 1544}, true, true, true), words}};
}

}  // namespace

extern const OpDef kResidualNorm, kResidualNormVjp;
constexpr OpDef kResidualNorm{.name = "residual_norm",
                              .summary = "out = in + rms_norm(branch), normed = rms_norm(out)",
                              .operands = kOperands,
                              .outputs = kOutputs,
                              .attrs = kAttrs,
                              .diff = Diff::kHasVjp,
                              .infer = infer,
                              .vjp = vjp,
                              .decompose = decompose,
                              .fusions = kFusions,
                              .cpu = cpu,
                              .cuda = GLIM_CUDA_KERNEL(cuda::residual_norm),
                              .cost = per_element<11>,
                              .memory = {alias},
                              .precision = Precision::kFollows,
                              .shard = Shard::kRows,
                              .cases = cases};
static_assert(complete(kResidualNorm));

constexpr OpDef kResidualNormVjp{.name = "residual_norm_vjp",
                                 .summary = "cotangents of in, branch and the weights in residual_norm",
                                 .operands = kVjpOperands,
                                 .outputs = kVjpOutputs,
                                 .attrs = kAttrs,
                                 .diff = Diff::kNoVjp,
                                 .infer = vjp_infer,
                                 .cpu = vjp_cpu,
                                 .cuda = GLIM_CUDA_KERNEL(cuda::residual_norm_vjp),
                                 .cost = vjp_cost,
                                 .memory = {vjp_alias},
                                 .precision = Precision::kFollows,
                                 .shard = Shard::kRows,
                                 .cases = vjp_cases};
static_assert(complete(kResidualNormVjp));

}  // namespace glim::ops
