#include "ops/sigmoid/sigmoid.h"

#include "ops/cpu.h"
#include "ops/vector_math.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}};
constexpr std::string_view kOutputs[] = {"out"};

Result<Types> infer(const InferArgs& a) {
  GLIM_EXPECT(is_float(a.in[0]->dtype), "operand must be floating-point, not {}", to_string(a.in[0]->dtype));
  return Types{*a.in[0]};
}

// out = s(x);  ct_x = ct * out * (1 - out)
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) { return {emit_value(g, "sigmoid_vjp", {a.out[0], a.cotangents[0]})}; }

void cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    cpu::for_each_run<T, T>(
        k.context,
        [](int64_t n, const T* x, T* out) {
          GLIM_ELEMENTWISE
          for (int64_t i = 0; i < n; ++i) out[i] = T(A(1) / (A(1) + cpu::fast_exp(-static_cast<A>(x[i]))));
        },
        k.in[0], k.out[0]);
  });
}

std::vector<OpCase> cases() { return {{"matrix", {{{4, 6}}}, {}}, {"vector", {{{9}}}, {}}, {"many tasks", {{{260, 131}}}, {}}}; }

constexpr OperandSpec kVjpOperands[] = {{"out"}, {"ct"}};
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
        [](int64_t n, const T* y, const T* ct, T* out) {
          GLIM_ELEMENTWISE
          for (int64_t i = 0; i < n; ++i) {
            const A s = static_cast<A>(y[i]);
            out[i] = T(static_cast<A>(ct[i]) * s * (A(1) - s));
          }
        },
        k.in[0], k.in[1], k.out[0]);
  });
}

AliasFact vjp_alias(const InferArgs&, uint16_t) { return {AliasKind::kInPlace, 1}; }

std::vector<OpCase> vjp_cases() { return {{"matrix", {{{4, 6}}, {{4, 6}}}, {}}, {"many tasks", {{{130, 257}}, {{130, 257}}}, {}}}; }

}  // namespace

extern const OpDef kSigmoid, kSigmoidVjp;
constexpr OpDef kSigmoid{.name = "sigmoid",
                         .summary = "1 / (1 + exp(-in))",
                         .operands = kOperands,
                         .outputs = kOutputs,
                         .diff = Diff::kHasVjp,
                         .infer = infer,
                         .vjp = vjp,
                         .cpu = cpu,
                         .cuda = GLIM_CUDA_KERNEL(cuda::sigmoid),
                         .cost = per_element<10>,
                         .memory = {over_first},
                         .precision = Precision::kFollows,
                         .shard = Shard::kElementwise,
                         .cases = cases};
static_assert(complete(kSigmoid));

constexpr OpDef kSigmoidVjp{.name = "sigmoid_vjp",
                            .summary = "ct * out * (1 - out)",
                            .operands = kVjpOperands,
                            .outputs = kVjpOutputs,
                            .diff = Diff::kNoVjp,
                            .infer = vjp_infer,
                            .cpu = vjp_cpu,
                            .cuda = GLIM_CUDA_KERNEL(cuda::sigmoid_vjp),
                            .cost = per_element<3>,
                            .memory = {vjp_alias},
                            .precision = Precision::kFollows,
                            .shard = Shard::kElementwise,
                            .cases = vjp_cases};
static_assert(complete(kSigmoidVjp));

}  // namespace glim::ops
