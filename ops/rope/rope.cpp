#include "ops/rope/rope.h"

#include <array>
#include <cmath>

#include "ops/cpu.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}, {"positions"}};
constexpr std::string_view kOutputs[] = {"out"};
constexpr AttrSpec kAttrs[] = {required(integer_attr("head_dim", 0, "columns of one head, even")),
                               required(real_attr("theta", 0, "base of the frequencies, > 0")),
                               bool_attr("inverse", false, "rotate by the negative angle")};

Result<Types> infer(const InferArgs& a) {
  const TensorType &in = *a.in[0], &positions = *a.in[1];
  const auto [head_dim, theta, inverse] = a.attrs<RopeAttrs>();
  GLIM_EXPECT(is_float(in.dtype) && in.shape.rank == 2, "in must be a floating-point [T, H * head_dim], not {}", to_string(in));
  GLIM_EXPECT(head_dim > 0 && head_dim % 2 == 0 && in.shape[1] % head_dim == 0, "head_dim {} must be even and divide a width of {}",
              head_dim, in.shape[1]);
  GLIM_EXPECT(theta > 0 && std::isfinite(theta), "theta must be positive, not {}", theta);
  GLIM_EXPECT(positions.dtype == DType::kI32 && positions.shape.rank == 1 && positions.shape[0] == in.shape[0],
              "positions must be i32[{}], not {}", in.shape[0], to_string(positions));
  return Types{in};
}

// out = R(position) x, R orthogonal;  ct_x = R(position)^T ct
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  const auto [head_dim, theta, inverse] = a.attrs<RopeAttrs>();
  return {rope(g, a.cotangents[0], a.in[1], head_dim, theta, inverse == 0), {}};
}

// The frequencies and the angles are rounded to the type that the run computes in: at position 100,000 the rounding of f32 is
// part of the model.
void cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    const RopeAttrs attrs = k.attrs<RopeAttrs>();
    const int64_t width = k.out[0].type.shape[1], head_dim = attrs.head_dim, half = head_dim / 2;
    auto* frequency = reinterpret_cast<A*>(k.workspace.data());
    for (int64_t i = 0; i < half; ++i)
      frequency[i] = static_cast<A>(std::pow(attrs.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
    const auto* positions = k.in[1].as<int32_t>();
    constexpr int64_t kBlock = 128;  // pairs whose angles are computed at once, then used for all heads
    cpu::for_row_ranges(k.context, k.out[0].type.shape[0], width, [&](int64_t begin, int64_t end) {
      std::array<A, kBlock> cosine, sine;
      for (int64_t row = begin; row < end; ++row) {
        const A position = static_cast<A>(positions[row]);
        for (int64_t first = 0; first < half; first += kBlock) {
          const int64_t n = std::min(kBlock, half - first);
          for (int64_t i = 0; i < n; ++i) {
            const A angle = position * frequency[first + i];
            cosine[i] = std::cos(angle);
            sine[i] = attrs.inverse != 0 ? -std::sin(angle) : std::sin(angle);
          }
          for (int64_t head = 0; head < width; head += head_dim) {
            const T* x = k.in[0].row<T>(row) + head + first;
            T* out = k.out[0].row<T>(row) + head + first;
            GLIM_ELEMENTWISE
            for (int64_t i = 0; i < n; ++i) {
              const A left = static_cast<A>(x[i]), right = static_cast<A>(x[i + half]);
              out[i] = T(left * cosine[i] - right * sine[i]);
              out[i + half] = T(right * cosine[i] + left * sine[i]);
            }
          }
        }
      }
    });
  });
}

Cost cost(const CostArgs& a) {
  Cost cost = per_element<3>(a);
  cost.workspace_bytes = static_cast<size_t>(a.attrs<RopeAttrs>().head_dim / 2) * size_of(accumulation_dtype(a.out[0].dtype));
  return cost;
}

std::vector<OpCase> cases() {
  return {{"two heads of 4", {{{5, 8}}, {{5}, Fill::kPositions, CaseDType::kI32}}, to_words(RopeAttrs{4, 10000, 0})},
          {"inverse", {{{5, 12}}, {{5}, Fill::kPositions, CaseDType::kI32}}, to_words(RopeAttrs{6, 500000, 1})},
          {"many tasks", {{{70, 640}}, {{70}, Fill::kPositions, CaseDType::kI32}}, to_words(RopeAttrs{320, 10000, 0})}};
}

}  // namespace

extern const OpDef kRope;
constexpr OpDef kRope{.name = "rope",
                      .summary = "rotates each head by its row's position, split-half layout",
                      .operands = kOperands,
                      .outputs = kOutputs,
                      .attrs = kAttrs,
                      .diff = Diff::kHasVjp,
                      .infer = infer,
                      .vjp = vjp,
                      .cpu = cpu,
                      .cuda = GLIM_CUDA_KERNEL(cuda::rope),
                      .cost = cost,
                      .memory = {over_first},
                      .precision = Precision::kFollows,
                      .shard = Shard::kRows,
                      .cases = cases};
static_assert(complete(kRope));

}  // namespace glim::ops
