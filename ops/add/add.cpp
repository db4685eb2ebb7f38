#include "ops/add/add.h"

#include "ops/cpu.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}, {"other"}};
constexpr std::string_view kOutputs[] = {"out"};

Result<Types> infer(const InferArgs& a) {
  GLIM_EXPECT(is_float(a.in[0]->dtype), "operands must be floating-point, not {}", to_string(a.in[0]->dtype));
  GLIM_EXPECT(*a.in[0] == *a.in[1], "operand types differ: {} and {}", to_string(*a.in[0]), to_string(*a.in[1]));
  return Types{*a.in[0]};
}

// out = a + b;  ct_a = ct, ct_b = ct
std::vector<ValueId> vjp(Graph&, const VjpArgs& a) { return {a.cotangents[0], a.cotangents[0]}; }

void cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    cpu::for_each_run<T, T, T>(
        k.context,
        [](int64_t n, const T* a, const T* b, T* out) {
          for (int64_t i = 0; i < n; ++i) out[i] = T(static_cast<A>(a[i]) + static_cast<A>(b[i]));
        },
        k.in[0], k.in[1], k.out[0]);
  });
}

// out may overwrite its first operand.
AliasFact alias(const InferArgs&, uint16_t) { return {AliasKind::kInPlace, 0}; }

std::vector<OpCase> cases() { return {{"vector", {{{7}}, {{7}}}, {}}, {"matrix", {{{5, 9}}, {{5, 9}}}, {}}}; }

}  // namespace

extern const OpDef kAdd;
constexpr OpDef kAdd{.name = "add",
                     .summary = "in + other",
                     .operands = kOperands,
                     .outputs = kOutputs,
                     .diff = Diff::kHasVjp,
                     .infer = infer,
                     .vjp = vjp,
                     .cpu = cpu,
                     .cuda = GLIM_CUDA_KERNEL(cuda::add),
                     .cost = per_element<1>,
                     .memory = {alias},
                     .precision = Precision::kFollows,
                     .role = Role::kAdd,
                     .shard = Shard::kElementwise,
                     .cases = cases};
static_assert(complete(kAdd));

}  // namespace glim::ops
