#include "ops/pad/pad.h"

#include "ops/cpu_regions.h"
#include "ops/slice/slice.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}};
constexpr std::string_view kOutputs[] = {"out"};
constexpr AttrSpec kAttrs[] = {required(integer_attr("axis", 0, "0 (rows) or 1 (columns)")),
                               required(integer_attr("begin", 0, "where in starts in the output")),
                               required(integer_attr("length", 0, "extent of the output"))};

Result<Types> infer(const InferArgs& a) {
  const auto [axis, begin, length] = a.attrs<PadAttrs>();
  TensorType out = *a.in[0];
  GLIM_EXPECT(out.shape.rank == 1 || out.shape.rank == 2, "operand must have rank 1 or 2, not {}", out.shape.rank);
  GLIM_EXPECT(axis >= 0 && axis < out.shape.rank, "axis {} is outside a rank of {}", axis, out.shape.rank);
  int64_t& extent = out.shape.dims[static_cast<size_t>(axis)];
  GLIM_EXPECT(begin >= 0 && length >= extent && begin <= length - extent, "{} elements from {} on do not fit into {}", extent, begin,
              length);
  extent = length;
  GLIM_ASSIGN(out.shape, make_shape(std::span(out.shape.dims).first(out.shape.rank)));
  return Types{out};
}

// out = x with zeros around;  ct_x = ct[begin : begin + extent of x]
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  const auto [axis, begin, length] = a.attrs<PadAttrs>();
  return {slice(g, a.cotangents[0], axis, begin, g.type(a.in[0]).shape[static_cast<int>(axis)])};
}

void cpu(const KernelArgs& k) {
  const auto [axis, begin, length] = k.attrs<PadAttrs>();
  cpu::clear(k.context, k.out[0]);
  cpu::copy_region(k.context, k.in[0], {}, k.out[0], axis == 0 ? Region{begin, 0} : Region{0, begin}, k.in[0].type.shape);
}

std::vector<OpCase> cases() {
  return {{"columns", {{{4, 3}}}, to_words(PadAttrs{1, 2, 7})},
          {"rows", {{{3, 3}}}, to_words(PadAttrs{0, 1, 6})},
          {"vector", {{{4}}}, to_words(PadAttrs{0, 0, 9})}};
}

}  // namespace

extern const OpDef kPad;
constexpr OpDef kPad{.name = "pad",
                     .summary = "in with zeros around it along an axis",
                     .operands = kOperands,
                     .outputs = kOutputs,
                     .attrs = kAttrs,
                     .diff = Diff::kHasVjp,
                     .infer = infer,
                     .vjp = vjp,
                     .cpu = cpu,
                     .cuda = GLIM_CUDA_KERNEL(cuda::pad),
                     .cost = moved,
                     .memory = {no_alias},
                     .precision = Precision::kFollows,
                     .shard = Shard::kRows,
                     .cases = cases};
static_assert(complete(kPad));

}  // namespace glim::ops
