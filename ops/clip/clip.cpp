#include "ops/clip/clip.h"

#include <cmath>

#include "ops/cpu.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"sum_of_squares"}};
constexpr std::string_view kOutputs[] = {"scale", "norm", "finite"};
constexpr AttrSpec kAttrs[] = {required(real_attr("max_norm", 0, "largest norm that is let through; <= 0 = any"))};

Result<Types> infer(const InferArgs& a) {
  const TensorType& in = *a.in[0];
  GLIM_EXPECT((in.dtype == DType::kF32 || in.dtype == DType::kF64) && in.shape == Shape{1}, "operand must be f32[1] or f64[1], not {}",
              to_string(in));
  GLIM_EXPECT(std::isfinite(a.attrs<ClipAttrs>().max_norm), "max_norm must be finite, not {}", a.attrs<ClipAttrs>().max_norm);
  return Types{in, in, {DType::kI32, Shape{1}}};
}

template <class A>
void run(const KernelArgs& k) {
  const double max_norm = k.attrs<ClipAttrs>().max_norm, norm = std::sqrt(static_cast<double>(*k.in[0].as<A>()));
  const bool finite = std::isfinite(norm);
  // A norm that is not finite makes the step be skipped; its scale is still a number.
  const double scale = max_norm <= 0 ? 1.0 : !finite ? 0.0 : std::min(1.0, max_norm / (norm + 1e-6));
  *k.out[0].as<A>() = static_cast<A>(scale);
  *k.out[1].as<A>() = static_cast<A>(norm);
  *k.out[2].as<int32_t>() = finite ? 1 : 0;
}

void cpu(const KernelArgs& k) { k.in[0].type.dtype == DType::kF64 ? run<double>(k) : run<float>(k); }

std::vector<OpCase> cases() {
  const CaseInput sum{{1}, Fill::kPositive, CaseDType::kAccumulation};
  return {{"clipped", {sum}, to_words(ClipAttrs{0.01})},
          {"below the limit", {sum}, to_words(ClipAttrs{100})},
          {"no limit", {sum}, to_words(ClipAttrs{0})}};
}

}  // namespace

extern const OpDef kClip;
constexpr OpDef kClip{.name = "clip",
                      .summary = "scale = min(1, max_norm / (norm + 1e-6)), norm = sqrt(sum_of_squares), finite",
                      .operands = kOperands,
                      .outputs = kOutputs,
                      .attrs = kAttrs,
                      .diff = Diff::kNoVjp,
                      .infer = infer,
                      .cpu = cpu,
                      .cuda = GLIM_CUDA_KERNEL(cuda::clip),
                      .cost = per_element<4>,
                      .memory = {no_alias},
                      .precision = Precision::kExact,
                      .shard = Shard::kNone,
                      .cases = cases};
static_assert(complete(kClip));

}  // namespace glim::ops
