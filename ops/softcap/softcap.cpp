#include "ops/softcap/softcap.h"

#include <cmath>

#include "ops/cpu.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}};
constexpr std::string_view kOutputs[] = {"out"};
constexpr AttrSpec kAttrs[] = {required(real_attr("cap", 0, "bound of the output, > 0"))};

Result<Types> infer(const InferArgs& a) {
  GLIM_EXPECT(is_float(a.in[0]->dtype), "operand must be floating-point, not {}", to_string(a.in[0]->dtype));
  GLIM_EXPECT(a.attrs<SoftcapAttrs>().cap > 0, "cap must be positive, not {}", a.attrs<SoftcapAttrs>().cap);
  return Types{*a.in[0]};
}

// out = c tanh(x / c);  ct_x = ct * (1 - (out / c)^2)
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  return {emit_value(g, "softcap_vjp", {a.out[0], a.cotangents[0]}, a.attrs<SoftcapAttrs>())};
}

void cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    const A cap = static_cast<A>(k.attrs<SoftcapAttrs>().cap);
    cpu::for_each_run<T, T>(
        k.context,
        [cap](int64_t n, const T* x, T* out) {
          for (int64_t i = 0; i < n; ++i) out[i] = T(cap * std::tanh(static_cast<A>(x[i]) / cap));
        },
        k.in[0], k.out[0]);
  });
}

std::vector<OpCase> cases() {
  return {{"cap 2", {{{4, 6}}}, to_words(SoftcapAttrs{2.0})}, {"cap 20", {{{9}}}, to_words(SoftcapAttrs{20.0})}};
}

constexpr OperandSpec kVjpOperands[] = {{"out"}, {"ct"}};
constexpr std::string_view kVjpOutputs[] = {"ct_in"};

void vjp_cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    const A inverse = static_cast<A>(1.0 / k.attrs<SoftcapAttrs>().cap);
    cpu::for_each_run<T, T, T>(
        k.context,
        [inverse](int64_t n, const T* y, const T* ct, T* out) {
          for (int64_t i = 0; i < n; ++i) {
            const A t = static_cast<A>(y[i]) * inverse;
            out[i] = T(static_cast<A>(ct[i]) * (A(1) - t * t));
          }
        },
        k.in[0], k.in[1], k.out[0]);
  });
}

AliasFact vjp_alias(const InferArgs&, uint16_t) { return {AliasKind::kInPlace, 1}; }

std::vector<OpCase> vjp_cases() { return {{"cap 2", {{{4, 6}}, {{4, 6}}}, to_words(SoftcapAttrs{2.0})}}; }

}  // namespace

extern const OpDef kSoftcap, kSoftcapVjp;
constexpr OpDef kSoftcap{.name = "softcap",
                         .summary = "cap * tanh(in / cap)",
                         .operands = kOperands,
                         .outputs = kOutputs,
                         .attrs = kAttrs,
                         .diff = Diff::kHasVjp,
                         .infer = infer,
                         .vjp = vjp,
                         .cpu = cpu,
                         .cuda = GLIM_CUDA_KERNEL(cuda::softcap),
                         .cost = per_element<10>,
                         .memory = {over_first},
                         .precision = Precision::kFollows,
                         .shard = Shard::kElementwise,
                         .cases = cases};
static_assert(complete(kSoftcap));

constexpr OpDef kSoftcapVjp{.name = "softcap_vjp",
                            .summary = "ct * (1 - (out / cap)^2)",
                            .operands = kVjpOperands,
                            .outputs = kVjpOutputs,
                            .attrs = kAttrs,
                            .diff = Diff::kNoVjp,
                            .infer = same_as_first,
                            .cpu = vjp_cpu,
                            .cuda = GLIM_CUDA_KERNEL(cuda::softcap_vjp),
                            .cost = per_element<4>,
                            .memory = {vjp_alias},
                            .precision = Precision::kFollows,
                            .shard = Shard::kElementwise,
                            .cases = vjp_cases};
static_assert(complete(kSoftcapVjp));

}  // namespace glim::ops
