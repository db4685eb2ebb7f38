#include "ops/linear/linear.h"

#include "ops/cast/cast.h"
#include "ops/cpu.h"
#include "ops/gemm.h"
#include "ops/matmul/matmul.h"
#include "ops/sum_rows/sum_rows.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"in"}, {"weight"}, {"bias", true}};
constexpr std::string_view kOutputs[] = {"out"};
constexpr AttrSpec kAttrs[] = {bool_attr("wide_output", false, "the result has the accumulation type")};

Result<Types> infer(const InferArgs& a) {
  const TensorType &in = *a.in[0], &weight = *a.in[1];
  GLIM_EXPECT(is_float(in.dtype) && in.dtype == weight.dtype, "in and weight must have one floating-point type, not {} and {}",
              to_string(in.dtype), to_string(weight.dtype));
  GLIM_EXPECT(in.shape.rank == 2 && weight.shape.rank == 2, "in and weight must have rank 2, not {} and {}", to_string(in),
              to_string(weight));
  GLIM_EXPECT(in.shape[1] == weight.shape[1], "in has {} columns, the weight {} [N, K] takes {}", in.shape[1], to_string(weight),
              weight.shape[1]);
  if (a.in[2] != nullptr) {
    const TensorType bias{in.dtype, {weight.shape[0]}};
    GLIM_EXPECT(*a.in[2] == bias, "the bias must be {}, not {}", to_string(bias), to_string(*a.in[2]));
  }
  return Types{{a.attrs<LinearAttrs>().wide_output ? accumulation_dtype(in.dtype) : in.dtype, {in.shape[0], weight.shape[0]}}};
}

// out = X W^T + b;  ct_X = ct W, ct_W = ct^T X, ct_b = sum of ct's rows
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  const ValueId ct = cast(g, a.cotangents[0], g.type(a.in[0]).dtype);
  return {matmul(g, ct, a.in[1]), matmul(g, ct, a.in[0], {true, false}), a.in[2].valid() ? sum_rows(g, ct) : ValueId{}};
}

// Without a bias: no op broadcasts one over rows, and the product alone is what a composition is asked for.
std::vector<ValueId> decompose(Graph& g, std::span<const ValueId> in, std::span<const uint32_t> words) {
  if (in[2].valid()) return {ValueId{}};
  return {matmul(g, in[0], in[1], {false, true, from_words<LinearAttrs>(words).wide_output})};
}

void cpu(const KernelArgs& k) {
  const TensorView &in = k.in[0], &weight = k.in[1], &bias = k.in[2], &out = k.out[0];
  const int64_t rows = out.type.shape[0], columns = out.type.shape[1], depth = in.type.shape[1];
  cpu::dispatch_float(in.type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto run = [&]<class C>(C* c) {
      // The bias goes in first and the product is added to it, so that the result is rounded once.
      if (bias.present()) {
        cpu::for_row_ranges(k.context, rows, columns, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            for (int64_t j = 0; j < columns; ++j) c[i * out.row_stride + j] = static_cast<C>(bias.as<T>()[j]);
          }
        });
      }
      cpu::gemm<T, T, C>(k.context, rows, columns, depth, 1.0, {in.as<T>(), in.row_stride}, {weight.as<T>(), weight.row_stride, true}, c,
                         out.row_stride, bias.present() ? cpu::Into::kAdd : cpu::Into::kOverwrite);
    };
    if (out.type.dtype == in.type.dtype)
      run(out.as<T>());
    else
      run(out.as<cpu::Accumulate<T>>());
  });
}

Cost cost(const CostArgs& a) {
  Cost cost = moved(a);
  cost.flops = 2.0 * static_cast<double>(a.in[0]->shape.numel()) * static_cast<double>(a.out[0].shape[1]);
  return cost;
}

std::vector<OpCase> cases() {
  return {{"plain", {{{7, 5}}, {{9, 5}}, {{1}, Fill::kAbsent}}, to_words(LinearAttrs{})},
          {"bias", {{{7, 5}}, {{9, 5}}, {{9}}}, to_words(LinearAttrs{})},
          {"wide", {{{3, 17}}, {{4, 17}}, {{1}, Fill::kAbsent}}, to_words(LinearAttrs{1})},
          {"wide, bias", {{{3, 17}}, {{4, 17}}, {{4}}}, to_words(LinearAttrs{1})},
          {"one row", {{{1, 33}}, {{65, 33}}, {{65}}}, to_words(LinearAttrs{})}};
}

}  // namespace

extern const OpDef kLinear;
constexpr OpDef kLinear{.name = "linear",
                        .summary = "in * weight^T + bias",
                        .operands = kOperands,
                        .outputs = kOutputs,
                        .attrs = kAttrs,
                        .diff = Diff::kHasVjp,
                        .infer = infer,
                        .vjp = vjp,
                        .decompose = decompose,
                        .cpu = cpu,
                        .cuda = GLIM_CUDA_KERNEL(cuda::linear),
                        .cost = cost,
                        .memory = {no_alias},
                        .precision = Precision::kFollows,
                        .role = Role::kLinear,
                        .shard = Shard::kContraction,
                        .cases = cases};
static_assert(complete(kLinear));

}  // namespace glim::ops
