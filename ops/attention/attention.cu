// Chooses the kernels of attention and attention_vjp. Both passes recompute the scores tile by tile with an online softmax
// (arXiv:2205.14135); the backward pass goes over keys (ct_k, ct_v) and over queries (ct_q) separately, so that no sum crosses a block:
// no atomics, and the same bits every time.
#include "ops/attention/attention.cuh"
#include "ops/attention/library.h"

namespace glim::cuda {
void attention(const KernelArgs& k);
void attention_vjp(const KernelArgs& k);
namespace {

AttentionShape shape_of(const KernelArgs& k) {
  const auto attrs = k.attrs<ops::AttentionAttrs>();
  const int64_t rows = k.in[0].type.shape[0], width = k.in[0].type.shape[1];
  GLIM_CHECK(rows < (1 << 30) && attrs.num_heads < (1 << 16) && rows * attrs.num_heads < (int64_t{1} << 33),
             "attention: too many rows or heads for its indices");
  return {k.in[3].as<int32_t>(),
          static_cast<int>(k.in[3].type.shape[0] - 1),
          static_cast<int>(rows),
          static_cast<int>(attrs.num_heads),
          static_cast<int>(attrs.num_kv_heads),
          static_cast<int>(width / attrs.num_heads),
          attrs.causal != 0,
          static_cast<int>(std::min(attrs.window, rows)),
          attrs.scale};
}

enum class Pass { kForward, kBackward };

constexpr int kStatisticsThreads = 256;

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T each[4];
};
template <class T>
bool has_fours(const TensorView& view, int head_size) {
  return reinterpret_cast<uintptr_t>(view.data) % sizeof(Four<T>) == 0 && view.row_stride % 4 == 0 && head_size % 4 == 0;
}

// A warp per row and head. `in_fours`: four elements of out and of ct can be loaded at once.
template <class T>
__global__ void __launch_bounds__(kStatisticsThreads)
    row_statistics(AttentionShape shape, Rows<const T> out, Rows<const T> ct, Rows<const Accumulate<T>> lse, bool in_fours,
                   Accumulate<T> lse_factor, RowStatistics<Accumulate<T>>* statistics) {
  using A = Accumulate<T>;
  const int64_t item = (static_cast<int64_t>(blockIdx.x) * kStatisticsThreads + threadIdx.x) / kWarp;
  if (item >= static_cast<int64_t>(shape.rows) * shape.num_heads) return;
  const int row = static_cast<int>(item / shape.num_heads), head = static_cast<int>(item % shape.num_heads);
  const T *o = out[row] + head * shape.head_size, *c = ct[row] + head * shape.head_size;
  const int lane = threadIdx.x % kWarp;
  A sum = 0;
  if (in_fours) {
    for (int i = lane * 4; i < shape.head_size; i += kWarp * 4) {
      Four<T> four_o = *reinterpret_cast<const Four<T>*>(o + i), four_c = *reinterpret_cast<const Four<T>*>(c + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum += widen(four_o.each[j]) * widen(four_c.each[j]);
    }
  } else {
    for (int i = lane; i < shape.head_size; i += kWarp) sum += widen(o[i]) * widen(c[i]);
  }
  sum = lanes_sum<kWarp>(sum);
  if (lane == 0) statistics[static_cast<int64_t>(head) * shape.rows + row] = {lse[row][head] * lse_factor, sum};
}

// Only where the user asks for it: the own kernels are as fast or faster, but for the forward pass with a window in one long document, by 3
// to 7 % (the table in tests/gpu/README.md). That is too little for bits that depend on what else is installed.
bool served_by_library(const KernelArgs& k, Pass pass) {
  auto* const library = dynamic_cast<ops::AttentionLibrary*>(&k.context);
  if (library == nullptr || !library->is_forced()) return false;
  return pass == Pass::kForward ? library->attention(k) : library->attention_vjp(k);
}

}  // namespace

void attention(const KernelArgs& k) {
  const AttentionShape shape = shape_of(k);
  if (shape.rows == 0) return;
  if (served_by_library(k, Pass::kForward)) return;
  dispatch_float(k.in[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const ForwardArgs<T> args{rows_of<const T>(k.in[0]), rows_of<const T>(k.in[1]), rows_of<const T>(k.in[2]), rows_of<T>(k.out[0]),
                              rows_of<Accumulate<T>>(k.out[1])};
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      if (serves_tensor_cores(shape, DType::kBF16)) return tensor_forward(shape, args, stream(k));
    }
    plain_forward<T>(shape, args, stream(k));
  });
}

void attention_vjp(const KernelArgs& k) {
  const AttentionShape shape = shape_of(k);
  if (shape.rows == 0) return;
  if (served_by_library(k, Pass::kBackward)) return;
  dispatch_float(k.in[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = Accumulate<T>;
    constexpr bool kIsBf16 = std::is_same_v<T, __nv_bfloat16>;
    const auto space = ops::cuda_vjp_workspace(shape.rows, shape.head_size, k.attrs<ops::AttentionAttrs>(), sizeof(A), kIsBf16);
    GLIM_CHECK(k.workspace.size() >= space.bytes(), "attention_vjp: the workspace is too small");
    auto* const statistics = reinterpret_cast<RowStatistics<A>*>(k.workspace.data());
    const BackwardArgs<T> args{rows_of<const T>(k.in[0]), rows_of<const T>(k.in[1]), rows_of<const T>(k.in[2]), rows_of<const T>(k.in[6]),
                               rows_of<T>(k.out[0]),      rows_of<T>(k.out[1]),      rows_of<T>(k.out[2]),      statistics};
    const bool on_tensor_cores = kIsBf16 && serves_tensor_cores(shape, k.in[0].type.dtype);
    constexpr int kRowsPerBlock = kStatisticsThreads / kWarp;
    const auto blocks = (static_cast<int64_t>(shape.rows) * shape.num_heads + kRowsPerBlock - 1) / kRowsPerBlock;
    row_statistics<T><<<static_cast<unsigned>(blocks), kStatisticsThreads, 0, stream(k)>>>(
        shape, rows_of<const T>(k.in[4]), rows_of<const T>(k.in[6]), rows_of<const A>(k.in[5]),
        has_fours<T>(k.in[4], shape.head_size) && has_fours<T>(k.in[6], shape.head_size),
        on_tensor_cores ? static_cast<A>(1.4426950408889634) : A(1), statistics);
    if constexpr (kIsBf16) {
      if (on_tensor_cores) {
        std::byte* const partials = k.workspace.data() + space.statistics_bytes;
        return tensor_backward(shape, args, static_cast<int>(space.splits), reinterpret_cast<float*>(partials),
                               reinterpret_cast<float*>(partials + space.partial_bytes), stream(k));
      }
    }
    plain_backward<T>(shape, args, stream(k));
  });
}

}  // namespace glim::cuda
