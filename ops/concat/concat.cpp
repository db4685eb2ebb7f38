#include "ops/concat/concat.h"

#include "ops/cpu_regions.h"
#include "ops/slice/slice.h"
#include "ops/split/split.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in", false, true}};
constexpr std::string_view kOutputs[] = {"out"};
constexpr AttrSpec kAttrs[] = {required(integer_attr("axis", 0, "0 (rows) or 1 (columns)"))};

Result<Types> infer(const InferArgs& a) {
  const int64_t axis = a.attrs<ConcatAttrs>().axis;
  GLIM_EXPECT(!a.in.empty(), "needs at least one operand");
  TensorType out = *a.in[0];
  GLIM_EXPECT(out.shape.rank == 1 || out.shape.rank == 2, "operands must have rank 1 or 2, not {}", out.shape.rank);
  GLIM_EXPECT(axis >= 0 && axis < out.shape.rank, "axis {} is outside a rank of {}", axis, out.shape.rank);
  int64_t& extent = out.shape.dims[static_cast<size_t>(axis)];
  for (const TensorType* part : a.in.subspan(1)) {
    TensorType expected = *part;
    expected.shape.dims[static_cast<size_t>(axis)] = extent;
    GLIM_EXPECT(expected == out, "operand types {} and {} differ in more than axis {}", to_string(*a.in[0]), to_string(*part), axis);
    extent += part->shape[static_cast<int>(axis)];
    GLIM_EXPECT(extent <= kMaxDim, "the extents add up to more than {}", kMaxDim);
  }
  GLIM_ASSIGN(out.shape, make_shape(std::span(out.shape.dims).first(out.shape.rank)));
  return Types{out};
}

Region region(const InferArgs& a, uint16_t operand) {
  const int64_t axis = a.attrs<ConcatAttrs>().axis;
  int64_t begin = 0;
  for (uint16_t k = 0; k < operand; ++k) begin += a.in[k]->shape[static_cast<int>(axis)];
  return axis == 0 ? Region{begin, 0} : Region{0, begin};
}

// out = concat(parts);  ct of the parts = split(ct)
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  const int64_t axis = a.attrs<ConcatAttrs>().axis;
  std::vector<int64_t> sizes;
  for (const ValueId part : a.in) sizes.push_back(g.type(part).shape[static_cast<int>(axis)]);
  // split takes a few parts, none of them empty; slices say the same at more length.
  if (sizes.size() <= kMaxParts && std::find(sizes.begin(), sizes.end(), 0) == sizes.end()) return split(g, a.cotangents[0], axis, sizes);
  std::vector<ValueId> parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back(slice(g, a.cotangents[0], axis, begin, size));
    begin += size;
  }
  return parts;
}

// Copies the parts that the plan could not build in place.
void cpu(const KernelArgs& k) {
  const int64_t axis = k.attrs<ConcatAttrs>().axis;
  Region at;
  for (const TensorView& part : k.in) {
    cpu::copy_region(k.context, part, {}, k.out[0], at, part.type.shape);
    (axis == 0 ? at.row : at.column) += part.type.shape[static_cast<int>(axis)];
  }
}

AliasFact alias(const InferArgs&, uint16_t) { return {AliasKind::kAssemble, 0}; }

std::vector<OpCase> cases() {
  return {{"columns", {{{4, 3}}, {{4, 1}}, {{4, 5}}}, to_words(ConcatAttrs{1})},
          {"rows", {{{2, 3}}, {{5, 3}}}, to_words(ConcatAttrs{0})},
          {"vectors", {{{2}}, {{3}}, {{1}}, {{2}}, {{3}}, {{1}}, {{2}}, {{3}}, {{1}}}, to_words(ConcatAttrs{0})},
          {"an empty part", {{{2, 3}}, {{0, 3}}, {{1, 3}}}, to_words(ConcatAttrs{0})}};
}

}  // namespace

extern const OpDef kConcat;
constexpr OpDef kConcat{.name = "concat",
                        .summary = "the operands one after another along an axis",
                        .operands = kOperands,
                        .outputs = kOutputs,
                        .attrs = kAttrs,
                        .diff = Diff::kHasVjp,
                        .infer = infer,
                        .vjp = vjp,
                        .cpu = cpu,
                        .cuda = GLIM_CUDA_KERNEL(cuda::concat),
                        .cost = moved,
                        .memory = {alias, region},
                        .precision = Precision::kFollows,
                        .role = Role::kConcat,
                        .shard = Shard::kRows,
                        .cases = cases};
static_assert(complete(kConcat));

}  // namespace glim::ops
