#include "ops/rms_norm/rms_norm.h"

#include <cmath>

#include "engine/passes/fuse.h"
#include "ops/column_sums.h"
#include "ops/rms_norm/row_norm.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}, {"weight", true}};
constexpr std::string_view kOutputs[] = {"out"};
constexpr AttrSpec kAttrs[] = {required(real_attr("eps", 0, "added to the mean square, > 0")),
                               real_attr("weight_offset", 0, "added to the weight: 1 for a centered norm"),
                               integer_attr("group", 0, "columns that are normalised together; 0 = the whole row")};

Result<Types> infer(const InferArgs& a) {
  const TensorType &in = *a.in[0], *weight = a.in[1];
  const auto [eps, weight_offset, group] = a.attrs<RmsNormAttrs>();
  GLIM_EXPECT(is_float(in.dtype) && in.shape.rank == 2, "in must be a floating-point [T, W], not {}", to_string(in));
  GLIM_EXPECT(eps > 0 && std::isfinite(eps), "eps must be positive, not {}", eps);
  GLIM_EXPECT(std::isfinite(weight_offset), "weight_offset must be finite, not {}", weight_offset);
  GLIM_EXPECT(group >= 0 && (group == 0 || in.shape[1] % group == 0), "group {} does not divide a width of {}", group, in.shape[1]);
  const TensorType expected{in.dtype, Shape{group > 0 ? group : in.shape[1]}};
  GLIM_EXPECT(weight == nullptr || *weight == expected, "weight must be {}, not {}", to_string(expected), to_string(*weight));
  return Types{in};
}

// y = x r w', r = (mean(x^2) + eps)^-1/2, w' = offset + w;  with g = ct w': ct_x = r (g - x r mean(g x r)), ct_w = sum of ct x r
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  const NodeId node = emit(g, "rms_norm_vjp", {a.in[0], a.in[1], a.cotangents[0]}, a.attrs<RmsNormAttrs>());
  return {g.output(node), a.in[1].valid() ? g.output(node, 1) : ValueId{}};
}

void cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    const RmsNormAttrs attrs = k.attrs<RmsNormAttrs>();
    const A offset = static_cast<A>(attrs.weight_offset);
    const int64_t width = k.out[0].type.shape[1], n = attrs.group > 0 ? attrs.group : width;
    const T* weight = k.in[1].as<T>();
    cpu::for_row_ranges(k.context, k.out[0].type.shape[0], width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t first = 0; first < width; first += n) {
          const T* x = k.in[0].row<T>(row) + first;
          T* out = k.out[0].row<T>(row) + first;
          const A r = cpu::reciprocal_rms(x, n, attrs.eps);
          if (weight == nullptr) {
            GLIM_ELEMENTWISE
            for (int64_t i = 0; i < n; ++i) out[i] = T(static_cast<A>(x[i]) * r);
          } else {
            GLIM_ELEMENTWISE
            for (int64_t i = 0; i < n; ++i) out[i] = T(static_cast<A>(x[i]) * r * (offset + static_cast<A>(weight[i])));
          }
        }
      }
    });
  });
}

constexpr double kEps = 1e-5;

std::vector<OpCase> cases() {
  return {{"scaleless", {{{4, 6}}, {{}, Fill::kAbsent}}, to_words(RmsNormAttrs{kEps, 0, 0})},
          {"scaled", {{{4, 6}}, {{6}}}, to_words(RmsNormAttrs{kEps, 0, 0})},
          {"centered", {{{4, 6}}, {{6}}}, to_words(RmsNormAttrs{1e-8, 1, 0})},
          {"per head", {{{3, 12}}, {{}, Fill::kAbsent}}, to_words(RmsNormAttrs{kEps, 0, 4})},
          {"per head, scaled", {{{3, 12}}, {{4}}}, to_words(RmsNormAttrs{kEps, 1, 4})},
          {"long rows", {{{5, 1544}}, {{1544}}}, to_words(RmsNormAttrs{kEps, 1, 0})},
          {"many tasks", {{{300, 160}}, {{160}}}, to_words(RmsNormAttrs{kEps, 1, 0})}};
}

constexpr OperandSpec kVjpOperands[] = {{"in"}, {"weight", true}, {"ct"}, {"plus", true}};
constexpr std::string_view kVjpOutputs[] = {"ct_in", "ct_weight"};

Result<Types> vjp_infer(const InferArgs& a) {
  GLIM_ASSIGN(Types types, infer(a));
  GLIM_EXPECT(*a.in[2] == types[0], "ct must be {}, not {}", to_string(types[0]), to_string(*a.in[2]));
  GLIM_EXPECT(a.in[3] == nullptr || *a.in[3] == types[0], "plus must be {}, not {}", to_string(types[0]), to_string(*a.in[3]));
  if (a.in[1] != nullptr) types.push_back(*a.in[1]);
  return types;
}

// sums (the weight's cotangent so far) is null without a weight, plus may be null.
template <class T, class A = cpu::Accumulate<T>>
void vjp_group(const T* x, const T* weight, const T* ct, const T* plus, int64_t n, double eps, A offset, T* ct_x, double* sums) {
  const A r = cpu::reciprocal_rms(x, n, eps);
  const cpu::NormWeight<T> w{weight, offset};
  const auto cotangent = [ct](int64_t i) { return static_cast<A>(ct[i]); };
  const A mean = cpu::mean_of_products(x, cotangent, w, r, n);
  if (sums != nullptr) {
    for (int64_t i = 0; i < n; ++i) sums[i] += static_cast<double>(cotangent(i) * (static_cast<A>(x[i]) * r));
  }
  if (plus == nullptr) {
    GLIM_ELEMENTWISE
    for (int64_t i = 0; i < n; ++i) ct_x[i] = T(r * (cotangent(i) * w(i) - static_cast<A>(x[i]) * r * mean));
  } else {
    GLIM_ELEMENTWISE
    for (int64_t i = 0; i < n; ++i) ct_x[i] = T(static_cast<A>(plus[i]) + r * (cotangent(i) * w(i) - static_cast<A>(x[i]) * r * mean));
  }
}

void vjp_cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const RmsNormAttrs attrs = k.attrs<RmsNormAttrs>();
    const auto offset = static_cast<cpu::Accumulate<T>>(attrs.weight_offset);
    const int64_t num_rows = k.out[0].type.shape[0], width = k.out[0].type.shape[1], n = attrs.group > 0 ? attrs.group : width;
    const T* weight = k.in[1].as<T>();
    const auto row_vjp = [&](int64_t row, double* sums) {
      for (int64_t first = 0; first < width; first += n) {
        vjp_group(k.in[0].row<T>(row) + first, weight, k.in[2].row<T>(row) + first,
                  k.in[3].present() ? k.in[3].row<T>(row) + first : nullptr, n, attrs.eps, offset, k.out[0].row<T>(row) + first, sums);
      }
    };
    if (weight != nullptr) {
      cpu::column_sums(k.context, num_rows, n, reinterpret_cast<double*>(k.workspace.data()), k.out[1].as<T>(), row_vjp);
    } else {
      cpu::for_row_ranges(k.context, num_rows, width, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) row_vjp(row, nullptr);
      });
    }
  });
}

Cost vjp_cost(const CostArgs& a) {
  Cost cost = per_element<12>(a);
  if (a.in[1] != nullptr) {
    const int64_t rows = a.in[0]->shape[0], width = a.in[1]->shape[0];
    const size_t on_gpu = static_cast<size_t>(num_cuda_chunks(rows, width) * width) * size_of(accumulation_dtype(a.in[0]->dtype));
    cost.workspace_bytes = std::max(cpu::column_sums_bytes(rows, width), on_gpu);
  }
  return cost;
}

// ct_in may overwrite what is added to it, else ct.
AliasFact vjp_alias(const InferArgs& a, uint16_t output) {
  return output == 0 ? AliasFact{AliasKind::kInPlace, static_cast<uint16_t>(a.in[3] != nullptr ? 3 : 2)} : AliasFact{};
}

// add(rms_norm_vjp(x, w, ct), plus) -> rms_norm_vjp(x, w, ct, plus): where a residual stream forks into a norm, its cotangents meet.
std::optional<FusionMatch> join_cotangents(const FuseArgs& f) {
  const Graph& g = f.graph;
  const std::span<const ValueId> terms = g.inputs(f.root);
  for (size_t k = 0; k < 2; ++k) {
    const std::optional<NodeId> node = f.sole_producer(terms[k], "rms_norm_vjp");
    if (!node || g.output_number(terms[k]) != 0 || g.inputs(*node)[3].valid()) continue;
    const std::span<const ValueId> in = g.inputs(*node);
    const std::span<const uint32_t> words = g.attr_words(*node);
    FusionMatch match{
        g.node(*node).op, {in[0], in[1], in[2], terms[1 - k]}, {words.begin(), words.end()}, {{g.output(f.root), 0}}, {*node}};
    if (in[1].valid()) match.replaced.emplace_back(g.output(*node, 1), 1);
    return match;
  }
  return std::nullopt;
}
constexpr FusionPattern kVjpFusions[] = {{"add", join_cotangents, true}};

std::vector<OpCase> vjp_cases() {
  const CaseInput none{{}, Fill::kAbsent};
  return {{"scaleless", {{{4, 6}}, none, {{4, 6}}, none}, to_words(RmsNormAttrs{kEps, 0, 0})},
          {"centered", {{{4, 6}}, {{6}}, {{4, 6}}, none}, to_words(RmsNormAttrs{kEps, 1, 0})},
          {"per head", {{{3, 12}}, {{4}}, {{3, 12}}, none}, to_words(RmsNormAttrs{kEps, 0, 4})},
          {"plus", {{{5, 6}}, {{6}}, {{5, 6}}, {{5, 6}}}, to_words(RmsNormAttrs{kEps, 1, 0})},
          {"plus, per head", {{{3, 12}}, none, {{3, 12}}, {{3, 12}}}, to_words(RmsNormAttrs{kEps, 0, 4})},
          {"many tasks", {{{300, 160}}, {{160}}, {{300, 160}}, none}, to_words(RmsNormAttrs{kEps, 1, 0})},
          {"long rows", {{{5, 1544}}, {{1544}}, {{5, 1544}}, {{5, 1544}}}, to_words(RmsNormAttrs{kEps, 1, 0})}};
}

}  // namespace

extern const OpDef kRmsNorm, kRmsNormVjp;
constexpr OpDef kRmsNorm{.name = "rms_norm",
                         .summary = "in / sqrt(mean(in^2) + eps) * (weight_offset + weight)",
                         .operands = kOperands,
                         .outputs = kOutputs,
                         .attrs = kAttrs,
                         .diff = Diff::kHasVjp,
                         .infer = infer,
                         .vjp = vjp,
                         .cpu = cpu,
                         .cuda = GLIM_CUDA_KERNEL(cuda::rms_norm),
                         .cost = per_element<5>,
                         .memory = {over_first},
                         .precision = Precision::kFollows,
                         .shard = Shard::kRows,
                         .cases = cases};
static_assert(complete(kRmsNorm));

constexpr OpDef kRmsNormVjp{.name = "rms_norm_vjp",
                            .summary = "cotangents of in (plus another one) and weight in rms_norm",
                            .operands = kVjpOperands,
                            .outputs = kVjpOutputs,
                            .attrs = kAttrs,
                            .diff = Diff::kNoVjp,
                            .infer = vjp_infer,
                            .fusions = kVjpFusions,
                            .cpu = vjp_cpu,
                            .cuda = GLIM_CUDA_KERNEL(cuda::rms_norm_vjp),
                            .cost = vjp_cost,
                            .memory = {vjp_alias},
                            .precision = Precision::kFollows,
                            .shard = Shard::kRows,
                            .cases = vjp_cases};
static_assert(complete(kRmsNormVjp));

}  // namespace glim::ops
