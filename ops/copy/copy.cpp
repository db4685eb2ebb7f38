#include "ops/copy/copy.h"

#include "ops/cpu_regions.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}};
constexpr std::string_view kOutputs[] = {"out"};

// out = x;  ct_x = ct
std::vector<ValueId> vjp(Graph&, const VjpArgs& a) { return {a.cotangents[0]}; }

void cpu(const KernelArgs& k) { cpu::copy_region(k.context, k.in[0], {}, k.out[0], {}, k.in[0].type.shape); }

std::vector<OpCase> cases() {
  return {{"matrix", {{{4, 6}}}, {}},
          {"vector", {{{5}}}, {}},
          {"indices", {{{8}, Fill::kIndices, CaseDType::kI32, 5}}, {}},
          {"many tasks", {{{130, 257}}}, {}}};
}

}  // namespace

extern const OpDef kCopy;
constexpr OpDef kCopy{.name = "copy",
                      .summary = "in, in a buffer of its own",
                      .operands = kOperands,
                      .outputs = kOutputs,
                      .diff = Diff::kHasVjp,
                      .infer = same_as_first,
                      .vjp = vjp,
                      .cpu = cpu,
                      .cuda = GLIM_CUDA_KERNEL(cuda::copy),
                      .cost = moved,
                      .memory = {no_alias},
                      .precision = Precision::kFollows,
                      .role = Role::kCopy,
                      .shard = Shard::kElementwise,
                      .cases = cases};
static_assert(complete(kCopy));

}  // namespace glim::ops
