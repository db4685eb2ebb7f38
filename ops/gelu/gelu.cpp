#include "ops/gelu/gelu.h"

#include <cmath>

#include "ops/cpu.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}};
constexpr std::string_view kOutputs[] = {"out"};

Result<Types> infer(const InferArgs& a) {
  GLIM_EXPECT(is_float(a.in[0]->dtype), "operand must be floating-point, not {}", to_string(a.in[0]->dtype));
  return Types{*a.in[0]};
}

// Phi(x) = erfc(-x / sqrt(2)) / 2, which keeps its relative accuracy in the left tail, where 1 + erf cancels.
template <class A>
A normal_cdf(A x) {
  return A(0.5) * std::erfc(x * A(-0.70710678118654752440));
}

// out = x Phi(x);  ct_x = ct * (Phi(x) + x phi(x)), phi(x) = exp(-x^2 / 2) / sqrt(2 pi)
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) { return {emit_value(g, "gelu_vjp", {a.in[0], a.cotangents[0]})}; }

void cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    cpu::for_each_run<T, T>(
        k.context,
        [](int64_t n, const T* in, T* out) {
          for (int64_t i = 0; i < n; ++i) {
            const A x = static_cast<A>(in[i]);
            out[i] = T(x * normal_cdf(x));
          }
        },
        k.in[0], k.out[0]);
  });
}

std::vector<OpCase> cases() { return {{"matrix", {{{4, 6}}}, {}}, {"vector", {{{9}}}, {}}}; }

constexpr OperandSpec kVjpOperands[] = {{"in"}, {"ct"}};
constexpr std::string_view kVjpOutputs[] = {"ct_in"};

Result<Types> vjp_infer(const InferArgs& a) {
  GLIM_EXPECT(is_float(a.in[0]->dtype), "operands must be floating-point, not {}", to_string(a.in[0]->dtype));
  GLIM_EXPECT(*a.in[0] == *a.in[1], "operand types differ: {} and {}", to_string(*a.in[0]), to_string(*a.in[1]));
  return Types{*a.in[1]};
}

void vjp_cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    cpu::for_each_run<T, T, T>(
        k.context,
        [](int64_t n, const T* in, const T* ct, T* out) {
          for (int64_t i = 0; i < n; ++i) {
            const A x = static_cast<A>(in[i]);
            const A density = A(0.39894228040143267794) * std::exp(A(-0.5) * x * x);
            out[i] = T(static_cast<A>(ct[i]) * (normal_cdf(x) + x * density));
          }
        },
        k.in[0], k.in[1], k.out[0]);
  });
}

AliasFact vjp_alias(const InferArgs&, uint16_t) { return {AliasKind::kInPlace, 1}; }

std::vector<OpCase> vjp_cases() { return {{"matrix", {{{4, 6}}, {{4, 6}}}, {}}}; }

}  // namespace

extern const OpDef kGelu, kGeluVjp;
constexpr OpDef kGelu{.name = "gelu",
                      .summary = "in * Phi(in), exact (erf)",
                      .operands = kOperands,
                      .outputs = kOutputs,
                      .diff = Diff::kHasVjp,
                      .infer = infer,
                      .vjp = vjp,
                      .cpu = cpu,
                      .cuda = GLIM_CUDA_KERNEL(cuda::gelu),
                      .cost = per_element<30>,
                      .memory = {over_first},
                      .precision = Precision::kFollows,
                      .shard = Shard::kElementwise,
                      .cases = cases};
static_assert(complete(kGelu));

constexpr OpDef kGeluVjp{.name = "gelu_vjp",
                         .summary = "ct * (Phi(in) + in phi(in))",
                         .operands = kVjpOperands,
                         .outputs = kVjpOutputs,
                         .diff = Diff::kNoVjp,
                         .infer = vjp_infer,
                         .cpu = vjp_cpu,
                         .cuda = GLIM_CUDA_KERNEL(cuda::gelu_vjp),
                         .cost = per_element<45>,
                         .memory = {vjp_alias},
                         .precision = Precision::kFollows,
                         .shard = Shard::kElementwise,
                         .cases = vjp_cases};
static_assert(complete(kGeluVjp));

}  // namespace glim::ops
