// cross_entropy(softcap(multiplier * in weight^T)) and its gradients, over chunks of rows: a product into the chunk (the multiplier is
// its alpha), one block per row, and products out of the chunk. The workspace holds chunk_rows x V values of the accumulation type.
// Accumulation rule: a thread keeps a running maximum and sum (online softmax, arXiv:1805.02867) over every blockDim-th logit in f32 (f64
// in f64 runs); a block combines its threads in a fixed order; sums over rows are f64, in one block. No atomics: the same bits every time.
// A label that is out of range counts as ignored, and is an error at the end of the step.
// Unlike the CPU, a chunk without a valid row is multiplied too: how many there are is not known on the host.
#include "ops/cross_entropy/rows.cuh"
#include "ops/device/copy_view.h"
#include "ops/linear_cross_entropy/linear_cross_entropy_attrs.h"

namespace glim::cuda {
namespace {

template <class A>
struct RowPass {
  A* chunk;       // [rows of the chunk, V]: multiplied logits; for the backward pass, their cotangents afterwards
  int64_t begin;  // row of the whole tensor that the chunk starts with
  A cap;          // 0 = none
  Targets targets;
  Divisor<A> divisor;
  bool is_mean, forward, backward;
  A* row_loss;           // forward: outputs
  int32_t* prediction;   // forward
  A* row_lse;            // forward: output, otherwise saved
  const A* ct_loss;      // [1] or null
  const A* ct_row_loss;  // [T] or null
};

// One block per row. Cotangents are stored as S (bf16 in bf16 runs) from the start of the row's bytes: what a tile of threads writes
// lies behind everything that is still to be read, once the tile's own reads are done.
template <class A, class S>
__global__ void __launch_bounds__(kRowThreads) head_rows(RowPass<A> p) {
  const int64_t row = p.begin + blockIdx.x, vocabulary = p.targets.vocabulary;
  const A* logits = p.chunk + static_cast<int64_t>(blockIdx.x) * vocabulary;
  S* gradient = reinterpret_cast<S*>(p.chunk + static_cast<int64_t>(blockIdx.x) * vocabulary);
  if (!p.targets.valid(row)) {
    if (p.forward && threadIdx.x == 0) {
      p.row_loss[row] = 0;
      p.prediction[row] = -1;
      p.row_lse[row] = 0;
    }
    for (int64_t j = threadIdx.x; p.backward && j < vocabulary; j += blockDim.x) gradient[j] = narrow<S>(A(0));
    return;
  }
  const int32_t label = p.targets.labels[row];
  const auto capped = [&](A logit) { return p.cap > 0 ? p.cap * tanh_of(logit / p.cap) : logit; };
  A lse = 0;
  if (p.forward) {
    const A at_label = capped(logits[label]);  // before anybody overwrites it
    Running<A> mine{lowest(A()), 0, INT32_MAX};
    for (int64_t j = threadIdx.x; j < vocabulary; j += blockDim.x) take(mine, capped(logits[j]), j);
    const Running<A> all = block_combine(mine);
    const double log_sum = log(static_cast<double>(all.sum));
    lse = static_cast<A>(static_cast<double>(all.top) + log_sum);
    if (threadIdx.x == 0) {
      p.row_loss[row] = static_cast<A>(static_cast<double>(all.top) - static_cast<double>(at_label) + log_sum);
      p.prediction[row] = all.index == INT32_MAX ? 0 : all.index;
      p.row_lse[row] = lse;
    }
  } else {
    lse = p.row_lse[row];
  }
  if (!p.backward) return;
  double coefficient = p.ct_row_loss != nullptr ? static_cast<double>(p.ct_row_loss[row]) : 0;
  if (p.ct_loss != nullptr) {
    const double divisor = p.is_mean ? p.divisor.value() : 1;
    if (divisor != 0) coefficient += static_cast<double>(*p.ct_loss) / divisor;
  }
  const A factor = static_cast<A>(coefficient), inverse_cap = p.cap > 0 ? 1 / p.cap : A(0);
  for (int64_t first = 0; first < vocabulary; first += blockDim.x) {
    const int64_t j = first + threadIdx.x;
    A value = 0;
    if (j < vocabulary) {
      const A y = capped(logits[j]), bend = y * inverse_cap;
      value = factor * (exp_of(y - lse) - (j == label ? A(1) : A(0))) * (1 - bend * bend);
    }
    if constexpr (sizeof(S) != sizeof(A)) __syncthreads();
    if (j < vocabulary) gradient[j] = narrow<S>(value);
  }
}

// One pass over the chunks; absent views switch parts off. Like HeadPass of the CPU kernel.
struct Head {
  ops::LinearCrossEntropyAttrs attrs;
  TensorView in, weight, labels, denominator;
  std::span<const TensorView> statistics{};  // the seven outputs of the forward op; empty: row_lse and num_valid are given
  TensorView row_lse{}, num_valid{};
  TensorView ct_loss{}, ct_row_loss{};
  TensorView ct_in{}, ct_weight{}, weight_accumulator{};
};

template <class T>
void run(const Head& h, const KernelArgs& k) {
  using A = Accumulate<T>;
  const int64_t rows = h.in.type.shape[0], width = h.in.type.shape[1], vocabulary = h.weight.type.shape[0];
  const DType accumulation = accumulation_dtype(h.in.type.dtype);
  const bool forward = !h.statistics.empty(), backward = h.ct_in.present() || h.ct_weight.present(),
             is_mean = h.attrs.reduction == ops::Reduction::kMean;
  const Targets targets{h.labels.as<int32_t>(), rows, vocabulary, h.attrs.ignore_index};
  A* const chunk = reinterpret_cast<A*>(k.workspace.data());
  RowPass<A> pass{chunk,
                  0,
                  static_cast<A>(h.attrs.softcap),
                  targets,
                  {h.denominator.as<A>(), h.num_valid.as<int64_t>()},
                  is_mean,
                  forward,
                  backward,
                  nullptr,
                  nullptr,
                  h.row_lse.as<A>(),
                  h.ct_loss.as<A>(),
                  h.ct_row_loss.as<A>()};
  if (forward) {
    pass.divisor.num_valid = h.statistics[ops::kNumValid].as<int64_t>();
    pass.row_loss = h.statistics[ops::kRowLoss].as<A>();
    pass.prediction = h.statistics[ops::kRowPrediction].as<int32_t>();
    pass.row_lse = h.statistics[ops::kRowLse].as<A>();
    count_valid<<<1, kScalarThreads, 0, stream(k)>>>(targets, h.statistics[ops::kNumValid].as<int64_t>(), label_fault(k, vocabulary));
  }
  // The plan makes accumulator and output one buffer; only a caller without a plan passes two.
  if (h.weight_accumulator.present())
    copy_view(h.weight_accumulator, h.ct_weight, k.context.stream());
  else if (h.ct_weight.present() && rows == 0)
    clear_view(h.ct_weight, k.context.stream());
  double beta = h.weight_accumulator.present() ? 1 : 0;
  const int64_t gradient_stride = vocabulary * static_cast<int64_t>(sizeof(A) / sizeof(T));
  for (int64_t begin = 0; begin < rows; begin += h.attrs.chunk_rows) {
    const int64_t count = std::min(h.attrs.chunk_rows, rows - begin);
    const DeviceMatrix in{h.in.row<T>(begin), h.in.row_stride, false}, weight{h.weight.data, h.weight.row_stride, false};
    k.context.product({.rows = count,
                       .columns = vocabulary,
                       .depth = width,
                       .alpha = h.attrs.multiplier,
                       .dtype = h.in.type.dtype,
                       .a = in,
                       .b = {weight.data, weight.row_stride, true},
                       .c = chunk,
                       .c_dtype = accumulation,
                       .c_row_stride = vocabulary});
    pass.begin = begin;
    head_rows<A, T><<<static_cast<unsigned>(count), kRowThreads, 0, stream(k)>>>(pass);
    if (h.ct_in.present()) {
      k.context.product({.rows = count,
                         .columns = width,
                         .depth = vocabulary,
                         .alpha = h.attrs.multiplier,
                         .dtype = h.in.type.dtype,
                         .a = {chunk, gradient_stride, false},
                         .b = weight,
                         .c = h.ct_in.row<T>(begin),
                         .c_dtype = h.ct_in.type.dtype,
                         .c_row_stride = h.ct_in.row_stride});
    }
    if (h.ct_weight.present()) {
      k.context.product({.rows = vocabulary,
                         .columns = width,
                         .depth = count,
                         .alpha = h.attrs.multiplier,
                         .beta = beta,
                         .dtype = h.in.type.dtype,
                         .a = {chunk, gradient_stride, true},
                         .b = in,
                         .c = h.ct_weight.data,
                         .c_dtype = h.ct_weight.type.dtype,
                         .c_row_stride = h.ct_weight.row_stride});
      beta = 1;
    }
  }
  if (forward) {
    finish<A><<<1, kScalarThreads, 0, stream(k)>>>(targets, pass.divisor, is_mean, pass.row_loss, pass.prediction,
                                                   h.statistics[ops::kLoss].as<A>(), h.statistics[ops::kTokenAccuracy].as<A>(),
                                                   h.statistics[ops::kNumCorrect].as<int64_t>());
  }
}

void run_head(const Head& head, const KernelArgs& k) {
  dispatch_float(head.in.type.dtype, [&](auto tag) { run<typename decltype(tag)::Type>(head, k); });
}

void set_gradients(Head& head, const ops::LinearCrossEntropyVjpAttrs& attrs, std::span<const TensorView> out, int first) {
  if (attrs.input_gradient) head.ct_in = out[static_cast<size_t>(ops::ct_in_output(attrs, first))];
  if (attrs.weight_gradient) head.ct_weight = out[static_cast<size_t>(ops::ct_weight_output(attrs, first))];
}

}  // namespace

void linear_cross_entropy(const KernelArgs& k) {
  Head head{k.attrs<ops::LinearCrossEntropyAttrs>(), k.in[0], k.in[1], k.in[2], k.in[3]};
  head.statistics = k.out;
  run_head(head, k);
}

void linear_cross_entropy_vjp(const KernelArgs& k) {
  const auto attrs = k.attrs<ops::LinearCrossEntropyVjpAttrs>();
  Head head{attrs.head, k.in[0], k.in[1], k.in[2], k.in[3]};
  head.num_valid = k.in[4];
  head.row_lse = k.in[5];
  head.ct_loss = k.in[6];
  head.ct_row_loss = k.in[7];
  set_gradients(head, attrs, k.out, 0);
  run_head(head, k);
}

void linear_cross_entropy_grad(const KernelArgs& k) {
  const auto attrs = k.attrs<ops::LinearCrossEntropyVjpAttrs>();
  Head head{attrs.head, k.in[0], k.in[1], k.in[2], k.in[3]};
  head.statistics = k.out.first(ops::kNumCrossEntropyOutputs);
  head.ct_loss = k.in[4];
  head.weight_accumulator = k.in[5];
  set_gradients(head, attrs, k.out, ops::kNumCrossEntropyOutputs);
  run_head(head, k);
}

}  // namespace glim::cuda
