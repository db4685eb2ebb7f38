// cross_entropy(softcap(multiplier * in * weight^T)) and its gradients, over chunks of rows that have a valid label: those rows of `in`
// side by side, a product into the chunk (the multiplier is its alpha), one block per row, products out of the chunk, and the rows of ct_in
// back to their places. A replayed step skips chunks that no valid row is left for. The workspace holds chunk_rows x V values of the
// accumulation type.
// Accumulation rule: a thread keeps a running maximum and sum (online softmax, arXiv:1805.02867) over packs of logits in f32 (f64 in f64
// runs); a block combines its threads in a fixed order; sums over rows are f64, in one block. No atomics: the same bits every time.
// A label that is out of range counts as ignored, and is an error at the end of the step.
#include "ops/device/copy_view.h"
#include "ops/linear_cross_entropy/head_rows.cuh"
#include "ops/linear_cross_entropy/linear_cross_entropy_attrs.h"

namespace glim::cuda {
namespace {

// One pass over the chunks; absent views switch parts off. Like HeadPass of the CPU kernel.
struct Head {
  ops::LinearCrossEntropyAttrs attrs;
  TensorView in, weight, labels, denominator;
  std::span<const TensorView> statistics{};  // the seven outputs of the forward op; empty: row_lse and num_valid are given
  TensorView row_lse{}, num_valid{};
  TensorView ct_loss{}, ct_row_loss{};
  TensorView ct_in{}, ct_weight{}, weight_accumulator{};
};

template <bool kInto, class T>
void launch_move(cudaStream_t on, const int32_t* list, int64_t count, int64_t width, Rows<T> all, T* packed) {
  const auto launch = [&](auto word) {
    using Word = decltype(word);
    constexpr int64_t kElements = sizeof(Word) / sizeof(T);
    const RowGrid grid(count, width / kElements);
    move_rows<kInto, Word><<<grid.blocks, grid.threads, 0, on>>>(list, count, width / kElements,
                                                                 {reinterpret_cast<Word*>(all.data), all.stride / kElements},
                                                                 {reinterpret_cast<Word*>(packed), width / kElements});
  };
  constexpr int kMost = 16 / static_cast<int>(sizeof(T));
  if (width % kMost == 0 && takes_packs(all, count, kMost) && all.stride % kMost == 0) return launch(uint4{});
  launch(typename WordOf<sizeof(T)>::Type{});
}

template <class A, class T>
void launch_rows(cudaStream_t on, const RowPass<A>& pass, int64_t count) {
  constexpr int N = kPackOf<A>;
  const bool packed = pass.targets.vocabulary % N == 0 && reinterpret_cast<uintptr_t>(pass.chunk) % 16 == 0;
  const auto blocks = static_cast<unsigned>(count);
  if (packed)
    head_rows<A, T, N><<<blocks, kRowThreads, 0, on>>>(pass);
  else
    head_rows<A, T, 1><<<blocks, kRowThreads, 0, on>>>(pass);
}

template <class T>
void run(const Head& h, const KernelArgs& k) {
  using A = Accumulate<T>;
  const int64_t rows = h.in.type.shape[0], width = h.in.type.shape[1], vocabulary = h.weight.type.shape[0];
  const int64_t chunk_rows = std::min(rows, h.attrs.chunk_rows);
  const DType accumulation = accumulation_dtype(h.in.type.dtype);
  const bool forward = !h.statistics.empty(), backward = h.ct_in.present() || h.ct_weight.present(),
             is_mean = h.attrs.reduction == ops::Reduction::kMean;
  const Targets targets{h.labels.as<int32_t>(), rows, vocabulary, h.attrs.ignore_index};
  const ops::HeadWorkspace workspace(rows, chunk_rows, width, vocabulary, sizeof(T), sizeof(A));
  const auto at = [&](size_t offset) { return k.workspace.data() + offset; };
  auto* const list = reinterpret_cast<int32_t*>(at(workspace.list));
  auto* const count_of_list = reinterpret_cast<int64_t*>(at(workspace.count));
  T *const packed_in = reinterpret_cast<T*>(at(workspace.in)), *const packed_ct_in = reinterpret_cast<T*>(at(workspace.ct_in));
  A* const chunk = reinterpret_cast<A*>(at(workspace.chunk));
  RowPass<A> pass{chunk,
                  list,
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
  const Rows<T> in{h.in.as<T>(), h.in.row_stride}, ct_in{h.ct_in.as<T>(), h.ct_in.present() ? h.ct_in.row_stride : 0};
  if (rows > 0) {
    list_valid<<<1, kScalarThreads, 0, stream(k)>>>(targets, rows, list, count_of_list);
    const RowGrid grid(rows, h.ct_in.present() ? width : 1);
    fill_ignored<T, A><<<grid.blocks, grid.threads, 0, stream(k)>>>(targets, width, ct_in, pass.row_loss, pass.prediction, pass.row_lse);
  }
  const int64_t gradient_stride = vocabulary * static_cast<int64_t>(sizeof(A) / sizeof(T));
  const auto run_chunk = [&](int64_t begin) {
    const int64_t count = std::min(chunk_rows, rows - begin);
    const DeviceMatrix rows_in{packed_in, width, false}, weight{h.weight.data, h.weight.row_stride, false};
    launch_move<true>(stream(k), list + begin, count, width, in, packed_in);
    k.context.product({.rows = count,
                       .columns = vocabulary,
                       .depth = width,
                       .alpha = h.attrs.multiplier,
                       .dtype = h.in.type.dtype,
                       .a = rows_in,
                       .b = {weight.data, weight.row_stride, true},
                       .c = chunk,
                       .c_dtype = accumulation,
                       .c_row_stride = vocabulary});
    pass.rows = list + begin;
    launch_rows<A, T>(stream(k), pass, count);
    if (h.ct_in.present()) {
      k.context.product({.rows = count,
                         .columns = width,
                         .depth = vocabulary,
                         .alpha = h.attrs.multiplier,
                         .dtype = h.in.type.dtype,
                         .a = {chunk, gradient_stride, false},
                         .b = weight,
                         .c = packed_ct_in,
                         .c_dtype = h.ct_in.type.dtype,
                         .c_row_stride = width});
      launch_move<false>(stream(k), list + begin, count, width, ct_in, packed_ct_in);
    }
    if (h.ct_weight.present()) {
      k.context.product({.rows = vocabulary,
                         .columns = width,
                         .depth = count,
                         .alpha = h.attrs.multiplier,
                         .beta = begin > 0 || h.weight_accumulator.present() ? 1.0 : 0.0,
                         .dtype = h.in.type.dtype,
                         .a = {chunk, gradient_stride, true},
                         .b = rows_in,
                         .c = h.ct_weight.data,
                         .c_dtype = h.ct_weight.type.dtype,
                         .c_row_stride = h.ct_weight.row_stride});
    }
  };
  // The first chunk always runs: without an accumulator it is what clears ct_weight.
  if (rows > 0) run_chunk(0);
  for (int64_t begin = chunk_rows; begin < rows; begin += chunk_rows) k.context.when_more(count_of_list, begin, [&] { run_chunk(begin); });
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
