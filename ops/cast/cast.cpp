#include "ops/cast/cast.h"

#include "ops/cpu.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}};
constexpr std::string_view kOutputs[] = {"out"};
constexpr std::string_view kDTypes[] = {"f64", "f32", "bf16"};  // in the order of DType
constexpr AttrSpec kAttrs[] = {required(enum_attr("dtype", 0, kDTypes, "type of the output"))};

Result<Types> infer(const InferArgs& a) {
  const int64_t dtype = a.attrs<CastAttrs>().dtype;
  GLIM_EXPECT(is_float(a.in[0]->dtype), "operand must be floating-point, not {}", to_string(a.in[0]->dtype));
  GLIM_EXPECT(dtype >= 0 && dtype <= static_cast<int64_t>(DType::kBF16), "dtype must be f64, f32 or bf16");
  return Types{{static_cast<DType>(dtype), a.in[0]->shape}};
}

// out = round(x);  ct_x = ct in the type of x
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) { return {cast(g, a.cotangents[0], g.type(a.in[0]).dtype)}; }

void cpu(const KernelArgs& k) {
  cpu::dispatch_float(k.in[0].type.dtype, [&](auto from_tag) {
    using From = typename decltype(from_tag)::Type;
    cpu::dispatch_float(k.out[0].type.dtype, [&](auto to_tag) {
      using To = typename decltype(to_tag)::Type;
      cpu::for_each_run<From, To>(
          k.context,
          [](int64_t n, const From* x, To* out) {
            for (int64_t i = 0; i < n; ++i) out[i] = To(static_cast<cpu::Accumulate<From>>(x[i]));
          },
          k.in[0], k.out[0]);
    });
  });
}

std::vector<OpCase> cases() {
  return {{"to f64", {{{4, 6}}}, to_words(CastAttrs{static_cast<int64_t>(DType::kF64)})},
          {"to f32", {{{4, 6}}}, to_words(CastAttrs{static_cast<int64_t>(DType::kF32)})},
          {"to bf16", {{{13}}}, to_words(CastAttrs{static_cast<int64_t>(DType::kBF16)})}};
}

}  // namespace

extern const OpDef kCast;
constexpr OpDef kCast{.name = "cast",
                      .summary = "in, rounded to nearest even in another floating-point type",
                      .operands = kOperands,
                      .outputs = kOutputs,
                      .attrs = kAttrs,
                      .diff = Diff::kHasVjp,
                      .infer = infer,
                      .vjp = vjp,
                      .cpu = cpu,
                      .cuda = GLIM_CUDA_KERNEL(cuda::cast),
                      .cost = moved,
                      .memory = {no_alias},
                      .precision = Precision::kExact,
                      .role = Role::kCast,
                      .shard = Shard::kElementwise,
                      .cases = cases};
static_assert(complete(kCast));

}  // namespace glim::ops
