#include "ops/split/split.h"

#include "ops/concat/concat.h"
#include "ops/cpu.h"
#include "ops/fill/fill.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}};
constexpr std::string_view kOutputs[] = {"part"};
constexpr AttrSpec kAttrs[] = {
    required(integer_attr("axis", 0, "0 (rows) or 1 (columns)")), required(integer_attr("size0", 0, "extent of the first part")),
    integer_attr("size1", 0, "extent of the second part"),        integer_attr("size2", 0, "extent of the third part"),
    integer_attr("size3", 0, "extent of the fourth part"),        integer_attr("size4", 0, "extent of the fifth part"),
    integer_attr("size5", 0, "extent of the sixth part"),         integer_attr("size6", 0, "extent of the seventh part"),
    integer_attr("size7", 0, "extent of the eighth part")};

Result<Types> infer(const InferArgs& a) {
  const auto [axis, sizes] = a.attrs<SplitAttrs>();
  const TensorType& in = *a.in[0];
  GLIM_EXPECT(in.shape.rank == 1 || in.shape.rank == 2, "operand must have rank 1 or 2, not {}", in.shape.rank);
  GLIM_EXPECT(axis >= 0 && axis < in.shape.rank, "axis {} is outside a rank of {}", axis, in.shape.rank);
  Types parts;
  int64_t total = 0;
  for (const int64_t size : sizes) {
    if (size == 0) break;
    GLIM_EXPECT(size > 0, "the extent of a part must be positive, not {}", size);
    TensorType part = in;
    part.shape.dims[static_cast<size_t>(axis)] = size;
    parts.push_back(part);
    GLIM_EXPECT(size <= in.shape[static_cast<int>(axis)] - total, "the parts add up to more than the {} of axis {}",
                in.shape[static_cast<int>(axis)], axis);
    total += size;
  }
  GLIM_EXPECT(!parts.empty() && total == in.shape[static_cast<int>(axis)], "the parts add up to {}, not to the {} of axis {}", total,
              in.shape[static_cast<int>(axis)], axis);
  return parts;
}

Region region(const InferArgs& a, uint16_t output) {
  const auto [axis, sizes] = a.attrs<SplitAttrs>();
  int64_t begin = 0;
  for (uint16_t k = 0; k < output; ++k) begin += sizes[k];
  return axis == 0 ? Region{begin, 0} : Region{0, begin};
}

// parts = split(x);  ct_x = concat(ct of every part), with zeros where a part has none
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  std::vector<ValueId> parts(a.cotangents.begin(), a.cotangents.end());
  for (size_t k = 0; k < parts.size(); ++k) {
    if (!parts[k].valid()) parts[k] = fill(g, g.type(a.out[k]), 0.0);
  }
  return {concat(g, parts, a.attrs<SplitAttrs>().axis)};
}

// Runs only where the plan could not make the parts views.
void cpu(const KernelArgs& k) {
  const auto [axis, sizes] = k.attrs<SplitAttrs>();
  int64_t begin = 0;
  const size_t element = size_of(k.in[0].type.dtype);
  for (size_t part = 0; part < k.out.size(); begin += sizes[part], ++part) {
    const TensorView& out = k.out[part];
    const int64_t first_row = axis == 0 ? begin : 0, first_column = axis == 0 ? 0 : begin;
    if (out.type.shape.rank == 1) {
      std::memcpy(out.data, k.in[0].as<std::byte>() + static_cast<size_t>(begin) * element, out.type.bytes());
      continue;
    }
    const int64_t width = out.type.shape[1];
    cpu::for_row_ranges(k.context, out.type.shape[0], width, [&](int64_t row, int64_t end) {
      for (; row < end; ++row) {
        const std::byte* from =
            k.in[0].as<std::byte>() + static_cast<size_t>((row + first_row) * k.in[0].row_stride + first_column) * element;
        std::memcpy(out.as<std::byte>() + static_cast<size_t>(row * out.row_stride) * element, from, static_cast<size_t>(width) * element);
      }
    });
  }
}

AliasFact alias(const InferArgs&, uint16_t) { return {AliasKind::kView, 0}; }

std::vector<OpCase> cases() {
  return {{"columns", {{{4, 9}}}, to_words(SplitAttrs{1, {4, 2, 3}})},
          {"rows", {{{5, 3}}}, to_words(SplitAttrs{0, {1, 4}})},
          {"vector", {{{6}}}, to_words(SplitAttrs{0, {2, 4}})}};
}

}  // namespace

extern const OpDef kSplit;
constexpr OpDef kSplit{.name = "split",
                       .summary = "views of consecutive parts of in along an axis",
                       .operands = kOperands,
                       .outputs = kOutputs,
                       .attrs = kAttrs,
                       .diff = Diff::kHasVjp,
                       .infer = infer,
                       .vjp = vjp,
                       .cpu = cpu,
                       .cuda = GLIM_CUDA_KERNEL(cuda::split),
                       .cost = moved,
                       .memory = {alias, region},
                       .precision = Precision::kFollows,
                       .role = Role::kSplit,
                       .shard = Shard::kRows,
                       .cases = cases};
static_assert(complete(kSplit));

}  // namespace glim::ops
