#include "ops/fill/fill.h"

#include <cmath>

#include "ops/cpu.h"

namespace glim::ops {
namespace {

constexpr std::string_view kOutputs[] = {"out"};
constexpr std::string_view kDTypes[] = {"f64", "f32", "bf16", "i64", "i32"};  // in the order of DType
constexpr AttrSpec kAttrs[] = {required(real_attr("value", 0, "of every element")),
                               required(enum_attr("dtype", 0, kDTypes, "type of the elements")),
                               required(integer_attr("rank", 0, "number of axes, 0 to 4")),
                               integer_attr("d0", 0, "extent of axis 0"),
                               integer_attr("d1", 0, "extent of axis 1"),
                               integer_attr("d2", 0, "extent of axis 2"),
                               integer_attr("d3", 0, "extent of axis 3")};

Result<Types> infer(const InferArgs& a) {
  const auto [value, dtype, rank, dims] = a.attrs<FillAttrs>();
  GLIM_EXPECT(dtype >= 0 && dtype <= static_cast<int64_t>(DType::kI32), "dtype {} is none of f64, f32, bf16, i64, i32", dtype);
  GLIM_EXPECT(rank >= 0 && rank <= kMaxRank, "rank must be 0 to {}, not {}", kMaxRank, rank);
  GLIM_ASSIGN(const Shape shape, make_shape(std::span(dims).first(static_cast<size_t>(rank))));
  const auto type = static_cast<DType>(dtype);
  GLIM_EXPECT(
      is_float(type) || (std::nearbyint(value) == value && std::fabs(value) <= (type == DType::kI32 ? 2147483647.0 : 9007199254740992.0)),
      "{} is no value of {}", value, to_string(type));
  return Types{{type, shape}};
}

template <class T>
void fill_with(const KernelArgs& k, T value) {
  cpu::for_each_run<T>(
      k.context, [value](int64_t n, T* out) { std::fill_n(out, n, value); }, k.out[0]);
}

void cpu(const KernelArgs& k) {
  const double value = k.attrs<FillAttrs>().value;
  switch (k.out[0].type.dtype) {
    case DType::kI64: return fill_with(k, static_cast<int64_t>(value));
    case DType::kI32: return fill_with(k, static_cast<int32_t>(value));
    default:
      cpu::dispatch_float(k.out[0].type.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        fill_with(k, T(value));
      });
  }
}

std::vector<OpCase> cases() {
  const auto words = [](double value, DType dtype, int64_t rank, std::array<int64_t, kMaxRank> dims) {
    return to_words(FillAttrs{value, static_cast<int64_t>(dtype), rank, dims});
  };
  return {{"f64", {}, words(0.1, DType::kF64, 2, {3, 5})},      {"f32", {}, words(-2.5, DType::kF32, 1, {9})},
          {"bf16", {}, words(1.0, DType::kBF16, 3, {2, 3, 4})}, {"i64", {}, words(-7, DType::kI64, 2, {2, 3})},
          {"i32", {}, words(100, DType::kI32, 1, {4})},         {"scalar", {}, words(4, DType::kF32, 0, {})}};
}

}  // namespace

extern const OpDef kFill;
constexpr OpDef kFill{.name = "fill",
                      .summary = "a tensor with one value everywhere",
                      .outputs = kOutputs,
                      .attrs = kAttrs,
                      .diff = Diff::kNoVjp,
                      .infer = infer,
                      .cpu = cpu,
                      .cuda = GLIM_CUDA_KERNEL(cuda::fill),
                      .cost = moved,
                      .memory = {no_alias},
                      .precision = Precision::kExact,
                      .role = Role::kFill,
                      .shard = Shard::kElementwise,
                      .cases = cases};
static_assert(complete(kFill));

}  // namespace glim::ops
