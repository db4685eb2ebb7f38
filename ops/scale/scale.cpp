#include "ops/scale/scale.h"

#include <cmath>

#include "ops/cpu.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}};
constexpr std::string_view kOutputs[] = {"out"};
constexpr AttrSpec kAttrs[] = {required(real_attr("factor", 1, "what every element is multiplied by"))};

Result<Types> infer(const InferArgs& a) {
  GLIM_EXPECT(is_float(a.in[0]->dtype), "operand must be floating-point, not {}", to_string(a.in[0]->dtype));
  GLIM_EXPECT(std::isfinite(a.attrs<ScaleAttrs>().factor), "factor must be finite, not {}", a.attrs<ScaleAttrs>().factor);
  return Types{*a.in[0]};
}

// out = f x;  ct_x = f ct
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) { return {scale(g, a.cotangents[0], a.attrs<ScaleAttrs>().factor)}; }

void cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    const A factor = static_cast<A>(k.attrs<ScaleAttrs>().factor);
    cpu::for_each_run<T, T>(
        k.context,
        [factor](int64_t n, const T* x, T* out) {
          GLIM_ELEMENTWISE
          for (int64_t i = 0; i < n; ++i) out[i] = T(static_cast<A>(x[i]) * factor);
        },
        k.in[0], k.out[0]);
  });
}

std::vector<OpCase> cases() {
  return {{"3.87", {{{4, 6}}}, to_words(ScaleAttrs{3.87})}, {"vector", {{{11}}}, to_words(ScaleAttrs{-0.19611613513818404})}};
}

}  // namespace

extern const OpDef kScale;
constexpr OpDef kScale{.name = "scale",
                       .summary = "in * factor",
                       .operands = kOperands,
                       .outputs = kOutputs,
                       .attrs = kAttrs,
                       .diff = Diff::kHasVjp,
                       .infer = infer,
                       .vjp = vjp,
                       .cpu = cpu,
                       .cuda = GLIM_CUDA_KERNEL(cuda::scale),
                       .cost = per_element<1>,
                       .memory = {over_first},
                       .precision = Precision::kFollows,
                       .shard = Shard::kElementwise,
                       .cases = cases};
static_assert(complete(kScale));

}  // namespace glim::ops
