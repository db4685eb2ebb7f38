#include "ops/slice/slice.h"

#include "ops/cpu_regions.h"
#include "ops/pad/pad.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}};
constexpr std::string_view kOutputs[] = {"out"};
constexpr AttrSpec kAttrs[] = {required(integer_attr("axis", 0, "0 (rows) or 1 (columns)")),
                               required(integer_attr("begin", 0, "first row or column")),
                               required(integer_attr("length", 0, "number of rows or columns"))};

Result<Types> infer(const InferArgs& a) {
  const auto [axis, begin, length] = a.attrs<SliceAttrs>();
  TensorType out = *a.in[0];
  GLIM_EXPECT(out.shape.rank == 1 || out.shape.rank == 2, "operand must have rank 1 or 2, not {}", out.shape.rank);
  GLIM_EXPECT(axis >= 0 && axis < out.shape.rank, "axis {} is outside a rank of {}", axis, out.shape.rank);
  int64_t& extent = out.shape.dims[static_cast<size_t>(axis)];
  GLIM_EXPECT(begin >= 0 && length >= 0 && begin <= extent && length <= extent - begin,
              "{} elements from {} on are not inside the {} of axis {}", length, begin, extent, axis);
  extent = length;
  return Types{out};
}

Region region(const InferArgs& a, uint16_t) {
  const auto [axis, begin, length] = a.attrs<SliceAttrs>();
  return axis == 0 ? Region{begin, 0} : Region{0, begin};
}

// out = x[begin : begin + length];  ct_x = ct with zeros around
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  const auto [axis, begin, length] = a.attrs<SliceAttrs>();
  return {pad(g, a.cotangents[0], axis, begin, g.type(a.in[0]).shape[static_cast<int>(axis)])};
}

// Runs only where the plan could not make the output a view.
void cpu(const KernelArgs& k) {
  const auto [axis, begin, length] = k.attrs<SliceAttrs>();
  cpu::copy_region(k.context, k.in[0], axis == 0 ? Region{begin, 0} : Region{0, begin}, k.out[0], {}, k.out[0].type.shape);
}

AliasFact alias(const InferArgs&, uint16_t) { return {AliasKind::kView, 0}; }

std::vector<OpCase> cases() {
  return {{"columns", {{{4, 9}}}, to_words(SliceAttrs{1, 3, 4})},
          {"rows", {{{5, 3}}}, to_words(SliceAttrs{0, 1, 3})},
          {"vector", {{{6}}}, to_words(SliceAttrs{0, 2, 4})}};
}

}  // namespace

extern const OpDef kSlice;
constexpr OpDef kSlice{.name = "slice",
                       .summary = "a view of consecutive rows or columns of in",
                       .operands = kOperands,
                       .outputs = kOutputs,
                       .attrs = kAttrs,
                       .diff = Diff::kHasVjp,
                       .infer = infer,
                       .vjp = vjp,
                       .cpu = cpu,
                       .cuda = GLIM_CUDA_KERNEL(cuda::slice),
                       .cost = moved,
                       .memory = {alias, region},
                       .precision = Precision::kFollows,
                       .shard = Shard::kRows,
                       .cases = cases};
static_assert(complete(kSlice));

}  // namespace glim::ops
