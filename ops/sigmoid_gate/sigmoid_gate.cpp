#include "ops/sigmoid_gate/sigmoid_gate.h"

#include "engine/passes/fuse.h"
#include "ops/cpu.h"
#include "ops/mul/mul.h"
#include "ops/sigmoid/sigmoid.h"
#include "ops/vector_math.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}, {"gate"}};
constexpr std::string_view kOutputs[] = {"out"};

Result<Types> infer(const InferArgs& a) {
  GLIM_EXPECT(is_float(a.in[0]->dtype), "operands must be floating-point, not {}", to_string(a.in[0]->dtype));
  GLIM_EXPECT(*a.in[0] == *a.in[1], "operand types differ: {} and {}", to_string(*a.in[0]), to_string(*a.in[1]));
  return Types{*a.in[0]};
}

// out = x s(g);  ct_x = ct s, ct_g = ct x s (1 - s)
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  const NodeId node = emit(g, "sigmoid_gate_vjp", {a.in[0], a.in[1], a.cotangents[0]});
  return {g.output(node, 0), g.output(node, 1)};
}

std::vector<ValueId> decompose(Graph& g, std::span<const ValueId> in, std::span<const uint32_t>) {
  return {mul(g, in[0], sigmoid(g, in[1]))};
}

// mul(x, sigmoid(g)), whichever side the sigmoid is on.
std::optional<FusionMatch> match(const FuseArgs& a) {
  const ValueId left = a.graph.inputs(a.root)[0], right = a.graph.inputs(a.root)[1];
  for (const auto& [in, gated] : {std::pair{left, right}, std::pair{right, left}}) {
    const std::optional<NodeId> gate = a.sole_producer(gated, "sigmoid");
    if (!gate) continue;
    return FusionMatch{.op = *a.graph.table().find("sigmoid_gate"),
                       .operands = {in, a.graph.inputs(*gate)[0]},
                       .attr_words = {},
                       .replaced = {{a.graph.output(a.root), uint16_t{0}}},
                       .interior = {*gate}};
  }
  return std::nullopt;
}
constexpr FusionPattern kFusions[] = {{"mul", match}};

void cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    cpu::for_each_run<T, T, T>(
        k.context,
        [](int64_t n, const T* in, const T* gate, T* out) {
          GLIM_ELEMENTWISE
          for (int64_t i = 0; i < n; ++i) {
            const A g = static_cast<A>(gate[i]), s = A(1) / (A(1) + cpu::fast_exp(-g));
            out[i] = T(static_cast<A>(in[i]) * s);
          }
        },
        k.in[0], k.in[1], k.out[0]);
  });
}

std::vector<OpCase> cases() {
  return {{"matrix", {{{4, 6}}, {{4, 6}}}, {}}, {"vector", {{{9}}, {{9}}}, {}}, {"many tasks", {{{260, 131}}, {{260, 131}}}, {}}};
}

constexpr OperandSpec kVjpOperands[] = {{"in"}, {"gate"}, {"ct"}};
constexpr std::string_view kVjpOutputs[] = {"ct_in", "ct_gate"};

Result<Types> vjp_infer(const InferArgs& a) {
  GLIM_EXPECT(is_float(a.in[0]->dtype), "operands must be floating-point, not {}", to_string(a.in[0]->dtype));
  GLIM_EXPECT(*a.in[0] == *a.in[1] && *a.in[0] == *a.in[2], "operand types differ: {}, {} and {}", to_string(*a.in[0]), to_string(*a.in[1]),
              to_string(*a.in[2]));
  return Types{*a.in[0], *a.in[1]};
}

void vjp_cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = cpu::Accumulate<T>;
    cpu::for_each_run<T, T, T, T, T>(
        k.context,
        [](int64_t n, const T* in, const T* gate, const T* cotangent, T* ct_in, T* ct_gate) {
          GLIM_ELEMENTWISE
          for (int64_t i = 0; i < n; ++i) {  // all reads come before the writes, which may lie on top of them
            const A x = static_cast<A>(in[i]), g = static_cast<A>(gate[i]), ct = static_cast<A>(cotangent[i]);
            const A s = A(1) / (A(1) + cpu::fast_exp(-g));
            ct_in[i] = T(ct * s);
            ct_gate[i] = T(ct * x * s * (A(1) - s));
          }
        },
        k.in[0], k.in[1], k.in[2], k.out[0], k.out[1]);
  });
}

// Each cotangent may overwrite its primal.
AliasFact vjp_alias(const InferArgs&, uint16_t output) { return {AliasKind::kInPlace, output}; }

std::vector<OpCase> vjp_cases() {
  return {{"matrix", {{{4, 6}}, {{4, 6}}, {{4, 6}}}, {}}, {"many tasks", {{{130, 257}}, {{130, 257}}, {{130, 257}}}, {}}};
}

}  // namespace

extern const OpDef kSigmoidGate, kSigmoidGateVjp;
constexpr OpDef kSigmoidGate{.name = "sigmoid_gate",
                             .summary = "in * sigmoid(gate)",
                             .operands = kOperands,
                             .outputs = kOutputs,
                             .diff = Diff::kHasVjp,
                             .infer = infer,
                             .vjp = vjp,
                             .decompose = decompose,
                             .fusions = kFusions,
                             .cpu = cpu,
                             .cuda = GLIM_CUDA_KERNEL(cuda::sigmoid_gate),
                             .cost = per_element<11>,
                             .memory = {over_first},
                             .precision = Precision::kFollows,
                             .shard = Shard::kElementwise,
                             .cases = cases};
static_assert(complete(kSigmoidGate));

constexpr OpDef kSigmoidGateVjp{.name = "sigmoid_gate_vjp",
                                .summary = "cotangents of in and gate in in * sigmoid(gate)",
                                .operands = kVjpOperands,
                                .outputs = kVjpOutputs,
                                .diff = Diff::kNoVjp,
                                .infer = vjp_infer,
                                .cpu = vjp_cpu,
                                .cuda = GLIM_CUDA_KERNEL(cuda::sigmoid_gate_vjp),
                                .cost = per_element<18>,
                                .memory = {vjp_alias},
                                .precision = Precision::kFollows,
                                .shard = Shard::kElementwise,
                                .cases = vjp_cases};
static_assert(complete(kSigmoidGateVjp));

}  // namespace glim::ops
