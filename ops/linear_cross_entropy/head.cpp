#include "ops/linear_cross_entropy/head.h"

#include <cstring>

#include "ops/gemm.h"
#include "ops/linear/linear.h"
#include "ops/scale/scale.h"
#include "ops/softcap/softcap.h"

namespace glim::ops {

Status check_head(const TensorType& in, const TensorType& weight, const TensorType& labels, const TensorType* denominator,
                  const LinearCrossEntropyAttrs& attrs) {
  GLIM_EXPECT(is_float(in.dtype) && in.dtype == weight.dtype, "in and weight must have one floating-point type, not {} and {}",
              to_string(in.dtype), to_string(weight.dtype));
  GLIM_EXPECT(in.shape.rank == 2 && weight.shape.rank == 2, "in and weight must have rank 2, not {} and {}", to_string(in),
              to_string(weight));
  GLIM_EXPECT(in.shape[1] == weight.shape[1], "in has {} columns, the weight {} [V, D] takes {}", in.shape[1], to_string(weight),
              weight.shape[1]);
  GLIM_EXPECT(weight.shape[0] > 0, "the vocabulary must not be empty");
  GLIM_EXPECT(attrs.softcap >= 0, "softcap must be positive, or 0 for none, not {}", attrs.softcap);
  GLIM_EXPECT(attrs.chunk_rows > 0, "chunk_rows must be positive, not {}", attrs.chunk_rows);
  return check_targets(labels, denominator, in.shape[0], accumulation_dtype(in.dtype));
}

Types gradient_types(const TensorType& in, const TensorType& weight, const LinearCrossEntropyVjpAttrs& attrs) {
  Types types;
  if (attrs.input_gradient) types.push_back(in);
  if (attrs.weight_gradient) types.push_back({attrs.wide_weight_gradient ? accumulation_dtype(weight.dtype) : weight.dtype, weight.shape});
  return types;
}

Cost head_cost(const CostArgs& a, int64_t chunk_rows, int num_products) {
  Cost cost = moved(a);
  const int64_t rows = a.in[0]->shape[0], vocabulary = a.in[1]->shape[0];
  cost.flops = 2.0 * num_products * static_cast<double>(a.in[0]->shape.numel()) * static_cast<double>(vocabulary);
  const DType dtype = a.in[0]->dtype;
  cost.workspace_bytes =
      HeadWorkspace(rows, std::min(rows, chunk_rows), a.in[0]->shape[1], vocabulary, size_of(dtype), size_of(accumulation_dtype(dtype)))
          .bytes;
  return cost;
}

namespace {

// Turns a row of capped logits y into the cotangent of the products before the multiplier's factor, in place:
// factor * (exp(y - lse) - onehot) * (1 - (y / cap)^2).
template <class A>
void row_gradient(A* y, int64_t vocabulary, int32_t label, A lse, A factor, double softcap) {
  const A inverse = softcap > 0 ? static_cast<A>(1 / softcap) : A(0);
  const A bend = y[label] * inverse, at_label = factor * (cpu::fast_exp(y[label] - lse) - A(1)) * (A(1) - bend * bend);
  for (int64_t j = 0; j < vocabulary; ++j) {
    const A t = y[j] * inverse;
    y[j] = factor * cpu::fast_exp(y[j] - lse) * (A(1) - t * t);
  }
  y[label] = at_label;
}

template <class T>
void run(const HeadPass& p, std::span<std::byte> workspace, KernelContext& context) {
  using A = cpu::Accumulate<T>;
  const auto& attrs = p.attrs;
  const int64_t rows = p.in.type.shape[0], width = p.in.type.shape[1], vocabulary = p.weight.type.shape[0];
  const Labels labels{p.labels.as<int32_t>(), rows, vocabulary, attrs.ignore_index};
  const bool forward = !p.statistics.empty(), backward = p.ct_in.present() || p.ct_weight.present();
  const int64_t num_valid = forward ? count_valid(labels, context) : p.num_valid;
  const double shared = loss_coefficient(p.ct_loss, p.denominator, num_valid, attrs.reduction);
  A* const row_lse = forward ? p.statistics[kRowLse].as<A>() : p.row_lse.as<A>();
  A* const row_loss = forward ? p.statistics[kRowLoss].as<A>() : nullptr;
  int32_t* const prediction = forward ? p.statistics[kRowPrediction].as<int32_t>() : nullptr;
  const A* const ct_row_loss = p.ct_row_loss.as<A>();
  A* const chunk = reinterpret_cast<A*>(workspace.data());  // [chunk_rows, V]: logits, then their cotangents
  const A cap = static_cast<A>(attrs.softcap);
  cpu::Into into = p.weight_accumulator.present() ? cpu::Into::kAdd : cpu::Into::kOverwrite;

  const auto handle_row = [&](int64_t begin, int64_t i) {
    A* y = chunk + (i - begin) * vocabulary;
    if (!labels.valid(i)) {
      if (forward) ignored_row(row_loss[i], prediction[i], row_lse[i]);
      if (backward) std::fill_n(y, vocabulary, A(0));
      return;
    }
    if (cap > 0) {
      for (int64_t j = 0; j < vocabulary; ++j) y[j] = cap * cpu::fast_tanh(y[j] / cap);
    }
    if (forward) row_statistics<A>(y, vocabulary, labels.values[i], row_loss[i], prediction[i], row_lse[i]);
    if (!backward) return;
    const double own = ct_row_loss != nullptr ? static_cast<double>(ct_row_loss[i]) : 0;
    row_gradient<A>(y, vocabulary, labels.values[i], row_lse[i], static_cast<A>(shared + own), attrs.softcap);
  };

  for (int64_t begin = 0; begin < rows; begin += attrs.chunk_rows) {
    const int64_t count = std::min(attrs.chunk_rows, rows - begin), end = begin + count;
    int64_t first_valid = begin;
    while (first_valid < end && !labels.valid(first_valid)) ++first_valid;
    if (first_valid == end) {  // nothing to learn from: no products
      for (int64_t i = begin; i < end; ++i) {
        if (forward) ignored_row(row_loss[i], prediction[i], row_lse[i]);
        if (p.ct_in.present()) std::fill_n(p.ct_in.row<T>(i), width, T(A(0)));
      }
      continue;
    }
    const cpu::Matrix<T> in{p.in.row<T>(begin), p.in.row_stride}, weight{p.weight.as<T>(), p.weight.row_stride};
    cpu::gemm<T, T, A>(context, count, vocabulary, width, attrs.multiplier, in, {weight.data, weight.row_stride, true}, chunk, vocabulary,
                       cpu::Into::kOverwrite);
    cpu::for_row_ranges(context, count, vocabulary, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) handle_row(begin, begin + i);
    });
    if (p.ct_in.present()) {
      cpu::gemm<A, T, T>(context, count, width, vocabulary, attrs.multiplier, {chunk, vocabulary}, weight, p.ct_in.row<T>(begin),
                         p.ct_in.row_stride, cpu::Into::kOverwrite);
    }
    if (p.ct_weight.present()) {
      const auto add = [&]<class C>(C* ct_weight) {
        cpu::gemm<A, T, C>(context, vocabulary, width, count, attrs.multiplier, {chunk, vocabulary, true}, in, ct_weight,
                           p.ct_weight.row_stride, into);
      };
      if (p.ct_weight.type.dtype == p.weight.type.dtype)
        add(p.ct_weight.as<T>());
      else
        add(p.ct_weight.as<A>());
      into = cpu::Into::kAdd;
    }
  }
  if (p.ct_weight.present() && into == cpu::Into::kOverwrite) {
    const size_t bytes = static_cast<size_t>(width) * size_of(p.ct_weight.type.dtype);
    for (int64_t j = 0; j < vocabulary; ++j) {
      std::memset(p.ct_weight.as<std::byte>() + static_cast<size_t>(j * p.ct_weight.row_stride) * size_of(p.ct_weight.type.dtype), 0,
                  bytes);
    }
  }
  if (forward) reduce_rows(labels, num_valid, p.denominator, attrs.reduction, p.statistics);
}

}  // namespace

void run_head(const HeadPass& pass, std::span<std::byte> workspace, KernelContext& context) {
  cpu::dispatch_float(pass.in.type.dtype, [&](auto tag) { run<typename decltype(tag)::Type>(pass, workspace, context); });
}

ValueId plain_logits(Graph& g, ValueId in, ValueId weight, const LinearCrossEntropyAttrs& attrs) {
  ValueId logits = linear(g, in, weight, {}, g.type(in).dtype == DType::kBF16);
  if (attrs.multiplier != 1) logits = scale(g, logits, attrs.multiplier);
  return attrs.softcap > 0 ? softcap(g, logits, attrs.softcap) : logits;
}

namespace {
constexpr int64_t kCaseRows = 13, kCaseWidth = 6, kCaseVocabulary = 19;
}

std::vector<HeadCase> head_cases() {
  constexpr auto kMean = Reduction::kMean;
  return {{"chunk of 1", {1, 0, -100, kMean, 1}, false, false},
          {"chunk of 7, multiplier, softcap", {0.5, 3, -100, kMean, 7}, true, false},
          {"chunk of T, softcap", {1, 2, -100, kMean, kCaseRows}, false, false},
          {"chunk above T, multiplier", {0.196, 0, -100, kMean, kCaseRows + 5}, true, false},
          {"sum", {1, 20, -100, Reduction::kSum, 4}, false, false},
          {"all ignored", {1, 20, 0, kMean, 5}, false, true}};
}

std::vector<CaseInput> head_inputs(const HeadCase& c) {
  return {{{kCaseRows, kCaseWidth}},
          {{kCaseVocabulary, kCaseWidth}},
          {{kCaseRows}, c.all_ignored ? Fill::kZero : Fill::kLabels, CaseDType::kI32, kCaseVocabulary},
          {{1}, c.denominator ? Fill::kPositive : Fill::kAbsent, CaseDType::kAccumulation}};
}

}  // namespace glim::ops
