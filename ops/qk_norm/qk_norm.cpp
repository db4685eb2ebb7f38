#include "ops/qk_norm/qk_norm.h"

#include <array>

#include "engine/passes/fuse.h"
#include "ops/cpu.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rms_norm/row_norm.h"
#include "ops/rope/rope.h"
#include "ops/scale/scale.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}, {"positions", true}};
constexpr std::string_view kOutputs[] = {"out"};
constexpr AttrSpec kAttrs[] = {required(real_attr("eps", 0, "added to the mean square of a head, > 0")),
                               required(integer_attr("head_dim", 0, "columns of one head, even, at most 1024")),
                               real_attr("factor", 1, "what every element is multiplied by"),
                               real_attr("theta", 0, "base of the frequencies, > 0 with positions")};

Result<Types> infer(const InferArgs& a) {
  const TensorType& in = *a.in[0];
  const auto [eps, head_dim, factor, theta] = a.attrs<QkNormAttrs>();
  GLIM_EXPECT(is_float(in.dtype) && in.shape.rank == 2, "in must be a floating-point [T, H * head_dim], not {}", to_string(in));
  GLIM_EXPECT(eps > 0 && std::isfinite(eps), "eps must be positive, not {}", eps);
  GLIM_EXPECT(head_dim > 0 && head_dim <= kMaxNormedHead && head_dim % 2 == 0 && in.shape[1] % head_dim == 0,
              "head_dim {} must be even, at most {}, and divide a width of {}", head_dim, kMaxNormedHead, in.shape[1]);
  GLIM_EXPECT(std::isfinite(factor), "factor must be finite, not {}", factor);
  if (a.in[1] == nullptr) return Types{in};
  GLIM_EXPECT(theta > 0 && std::isfinite(theta), "theta must be positive, not {}", theta);
  const TensorType positions{DType::kI32, Shape{in.shape[0]}};
  GLIM_EXPECT(*a.in[1] == positions, "positions must be {}, not {}", to_string(positions), to_string(*a.in[1]));
  return Types{in};
}

// out = R f x r, r = (mean(x^2) + eps)^-1/2;  with g = f R^T ct: ct_x = r (g - x r mean(g x r))
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  return {emit_value(g, "qk_norm_vjp", {a.in[0], a.in[1], a.cotangents[0]}, a.attrs<QkNormAttrs>()), {}};
}

std::vector<ValueId> decompose(Graph& g, std::span<const ValueId> in, std::span<const uint32_t> words) {
  const auto [eps, head_dim, factor, theta] = from_words<QkNormAttrs>(words);
  const ValueId scaled = scale(g, rms_norm(g, in[0], {}, eps, 0, head_dim), factor);
  return {in[1].valid() ? rope(g, scaled, in[1], head_dim, theta) : scaled};
}

// A norm over heads that has no weight and no other reader: in, eps and head_dim.
struct HeadNorm {
  NodeId node;
  double eps;
  int64_t head_dim;
};
std::optional<HeadNorm> head_norm(const FuseArgs& f, ValueId normed) {
  const std::optional<NodeId> node = f.sole_producer(normed, "rms_norm");
  if (!node || f.graph.inputs(*node)[1].valid()) return std::nullopt;
  const auto attrs = f.graph.attrs<RmsNormAttrs>(*node);
  const int64_t head_dim = attrs.group > 0 ? attrs.group : f.graph.type(normed).shape[1];
  if (head_dim <= 0 || head_dim % 2 != 0 || head_dim > kMaxNormedHead) return std::nullopt;
  return HeadNorm{*node, attrs.eps, head_dim};
}

FusionMatch match_of(const FuseArgs& f, const HeadNorm& norm, ValueId positions, double factor, double theta) {
  return {.op = *f.graph.table().find("qk_norm"),
          .operands = {f.graph.inputs(norm.node)[0], positions},
          .attr_words = to_words(QkNormAttrs{norm.eps, norm.head_dim, factor, theta}),
          .replaced = {{f.graph.output(f.root), uint16_t{0}}},
          .interior = {norm.node}};
}

// rope(scale?(rms_norm(x))), when nothing else reads what lies between, and head and group are the same.
std::optional<FusionMatch> rotated(const FuseArgs& f) {
  const Graph& g = f.graph;
  const auto turn = g.attrs<RopeAttrs>(f.root);
  ValueId normed = g.inputs(f.root)[0];
  const std::optional<NodeId> scaled = f.sole_producer(normed, "scale");
  if (scaled) normed = g.inputs(*scaled)[0];
  const std::optional<HeadNorm> norm = head_norm(f, normed);
  if (!norm || norm->head_dim != turn.head_dim || turn.inverse != 0) return std::nullopt;
  FusionMatch match = match_of(f, *norm, g.inputs(f.root)[1], scaled ? g.attrs<ScaleAttrs>(*scaled).factor : 1, turn.theta);
  if (scaled) match.interior.push_back(*scaled);
  return match;
}

// scale(rms_norm(x)) of a layer that does not rotate.
std::optional<FusionMatch> scaled(const FuseArgs& f) {
  const std::optional<HeadNorm> norm = head_norm(f, f.graph.inputs(f.root)[0]);
  if (!norm) return std::nullopt;
  return match_of(f, *norm, {}, f.graph.attrs<ScaleAttrs>(f.root).factor, 0);
}
constexpr FusionPattern kFusions[] = {{"rope", rotated}, {"scale", scaled}};

// The angles of one row. Frequencies and angles are rounded to the type that the run computes in: at position 100,000 the rounding of f32
// is part of the model.
template <class A>
struct Angles {
  std::array<A, kMaxNormedHead / 2> cosine, sine;
  void turn_to(const int32_t* positions, int64_t row, const A* frequency, int64_t half) {
    for (int64_t i = 0; i < half; ++i) {
      const A angle = positions == nullptr ? A(0) : static_cast<A>(positions[row]) * frequency[i];
      cosine[static_cast<size_t>(i)] = std::cos(angle);
      sine[static_cast<size_t>(i)] = std::sin(angle);
    }
  }
};

// Calls head(row, first column, angles) for every head.
template <class A, class Head>
void for_heads(const KernelArgs& k, const TensorView& out, Head&& head) {
  const auto attrs = k.attrs<QkNormAttrs>();
  const int64_t width = out.type.shape[1], head_dim = attrs.head_dim, half = head_dim / 2;
  const auto* positions = k.in[1].as<int32_t>();
  auto* frequency = reinterpret_cast<A*>(k.workspace.data());
  for (int64_t i = 0; positions != nullptr && i < half; ++i)
    frequency[i] = static_cast<A>(std::pow(attrs.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
  cpu::for_row_ranges(k.context, out.type.shape[0], width, [&](int64_t begin, int64_t end) {
    Angles<A> angles;
    if (positions == nullptr) angles.turn_to(nullptr, 0, nullptr, half);
    for (int64_t row = begin; row < end; ++row) {
      if (positions != nullptr) angles.turn_to(positions, row, frequency, half);
      for (int64_t first = 0; first < width; first += head_dim) head(row, first, angles);
    }
  });
}

void cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    const auto attrs = k.attrs<QkNormAttrs>();
    const int64_t half = attrs.head_dim / 2;
    for_heads<A>(k, k.out[0], [&](int64_t row, int64_t first, const Angles<A>& angles) {
      const T* x = k.in[0].row<T>(row) + first;
      T* out = k.out[0].row<T>(row) + first;
      const A by = static_cast<A>(attrs.factor) * cpu::reciprocal_rms(x, attrs.head_dim, attrs.eps);
      const A *cosine = angles.cosine.data(), *sine = angles.sine.data();
      GLIM_ELEMENTWISE
      for (int64_t i = 0; i < half; ++i) {
        const A left = static_cast<A>(x[i]) * by, right = static_cast<A>(x[i + half]) * by;
        out[i] = T(left * cosine[i] - right * sine[i]);
        out[i + half] = T(right * cosine[i] + left * sine[i]);
      }
    });
  });
}

Cost cost(const CostArgs& a) {
  Cost cost = per_element<8>(a);
  cost.workspace_bytes = static_cast<size_t>(a.attrs<QkNormAttrs>().head_dim / 2) * size_of(accumulation_dtype(a.out[0].dtype));
  return cost;
}

constexpr double kEps = 1e-5;

std::vector<OpCase> cases() {
  const auto positions = [](int64_t rows) { return CaseInput{{rows}, Fill::kPositions, CaseDType::kI32}; };
  const CaseInput none{{}, Fill::kAbsent};
  return {{"two heads of 4", {{{5, 8}}, positions(5)}, to_words(QkNormAttrs{kEps, 4, 3.87, 10000})},
          {"plain angles", {{{5, 12}}, positions(5)}, to_words(QkNormAttrs{kEps, 6, 1, 500000})},
          {"not rotated", {{{5, 8}}, none}, to_words(QkNormAttrs{kEps, 4, 3.87, 0})},
          {"heads of 128", {{{9, 2304}}, positions(9)}, to_words(QkNormAttrs{kEps, 128, 3.87, 500000})},
          {"many tasks", {{{70, 1280}}, positions(70)}, to_words(QkNormAttrs{kEps, 640, 0.5, 10000})}};
}

constexpr OperandSpec kVjpOperands[] = {{"in"}, {"positions", true}, {"ct"}};
constexpr std::string_view kVjpOutputs[] = {"ct_in"};

Result<Types> vjp_infer(const InferArgs& a) {
  GLIM_ASSIGN(Types types, infer(a));
  GLIM_EXPECT(*a.in[2] == types[0], "ct must be {}, not {}", to_string(types[0]), to_string(*a.in[2]));
  return types;
}

void vjp_cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    const auto attrs = k.attrs<QkNormAttrs>();
    const int64_t head_dim = attrs.head_dim, half = head_dim / 2;
    const A factor = static_cast<A>(attrs.factor);
    for_heads<A>(k, k.out[0], [&](int64_t row, int64_t first, const Angles<A>& angles) {
      const T *x = k.in[0].row<T>(row) + first, *ct = k.in[2].row<T>(row) + first;
      T* out = k.out[0].row<T>(row) + first;
      const A *cosine = angles.cosine.data(), *sine = angles.sine.data();
      const auto left = [&](int64_t i) { return factor * (static_cast<A>(ct[i]) * cosine[i] + static_cast<A>(ct[i + half]) * sine[i]); };
      const auto right = [&](int64_t i) { return factor * (static_cast<A>(ct[i + half]) * cosine[i] - static_cast<A>(ct[i]) * sine[i]); };
      const A r = cpu::reciprocal_rms(x, head_dim, attrs.eps);
      const double dot =
          cpu::lane_sum<A>(half, [&](int64_t i) { return (left(i) * static_cast<A>(x[i]) + right(i) * static_cast<A>(x[i + half])) * r; });
      const A mean = static_cast<A>(dot / static_cast<double>(head_dim));
      GLIM_ELEMENTWISE
      for (int64_t i = 0; i < half; ++i) {  // all reads come before the writes, which may lie on top of them
        const A a = r * (left(i) - static_cast<A>(x[i]) * r * mean), b = r * (right(i) - static_cast<A>(x[i + half]) * r * mean);
        out[i] = T(a);
        out[i + half] = T(b);
      }
    });
  });
}

Cost vjp_cost(const CostArgs& a) {
  Cost vjp = per_element<16>(a);
  vjp.workspace_bytes = cost(a).workspace_bytes;
  return vjp;
}

// ct_in may overwrite ct.
AliasFact vjp_alias(const InferArgs&, uint16_t) { return {AliasKind::kInPlace, 2}; }

std::vector<OpCase> vjp_cases() {
  std::vector<OpCase> all = cases();
  for (OpCase& c : all) c.inputs.push_back(c.inputs[0]);
  return all;
}

}  // namespace

extern const OpDef kQkNorm, kQkNormVjp;
constexpr OpDef kQkNorm{.name = "qk_norm",
                        .summary = "rope(factor * rms_norm(in)) of each head",
                        .operands = kOperands,
                        .outputs = kOutputs,
                        .attrs = kAttrs,
                        .diff = Diff::kHasVjp,
                        .infer = infer,
                        .vjp = vjp,
                        .decompose = decompose,
                        .fusions = kFusions,
                        .cpu = cpu,
                        .cuda = GLIM_CUDA_KERNEL(cuda::qk_norm),
                        .cost = cost,
                        .memory = {over_first},
                        .precision = Precision::kFollows,
                        .shard = Shard::kRows,
                        .cases = cases};
static_assert(complete(kQkNorm));

constexpr OpDef kQkNormVjp{.name = "qk_norm_vjp",
                           .summary = "cotangent of in in qk_norm",
                           .operands = kVjpOperands,
                           .outputs = kVjpOutputs,
                           .attrs = kAttrs,
                           .diff = Diff::kNoVjp,
                           .infer = vjp_infer,
                           .cpu = vjp_cpu,
                           .cuda = GLIM_CUDA_KERNEL(cuda::qk_norm_vjp),
                           .cost = vjp_cost,
                           .memory = {vjp_alias},
                           .precision = Precision::kFollows,
                           .shard = Shard::kRows,
                           .cases = vjp_cases};
static_assert(complete(kQkNormVjp));

}  // namespace glim::ops
