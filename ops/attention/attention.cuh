#pragma once
// Shared by the attention kernels: the shape of the problem, and what the rows of a tile see.
#include "ops/attention/attention_attrs.h"
#include "ops/device/device.cuh"

namespace glim::cuda {

struct AttentionShape {
  const int32_t* starts;  // [num_segments + 1]; a table that is not valid gives wrong results, and touches nothing outside the tensors
  int num_segments, rows, num_heads, num_kv_heads, head_size;
  bool causal;
  int window;  // at most `rows`; 0: none
  double scale;
  [[nodiscard]] __host__ __device__ int group() const { return num_heads / num_kv_heads; }
};

// A kernel's rows: queries (which read keys), or keys (which are read by queries).
enum class Side { kQueries, kKeys };

struct RowSpan {
  int begin, end;
};

// The rows of the other side that `row` meets: the keys that a query sees, or the queries that see a key. {0, 0} outside of all segments.
template <Side kSide>
__device__ RowSpan span_of(const AttentionShape& shape, int row) {
  int above = 0, last = shape.num_segments + 1;  // the first start above row is in [above, last]
  while (above < last) {
    const int middle = (above + last) / 2;
    if (shape.starts[middle] <= row)
      above = middle + 1;
    else
      last = middle;
  }
  if (above == 0 || above > shape.num_segments) return {0, 0};
  const int begin = max(shape.starts[above - 1], 0), end = min(shape.starts[above], shape.rows), window = shape.window;
  const int nearest = window > 0 ? max(begin, row - window + 1) : begin, farthest = window > 0 ? min(end, row + window) : end;
  if (!shape.causal) return {nearest, farthest};
  return kSide == Side::kQueries ? RowSpan{nearest, row + 1} : RowSpan{row, farthest};
}

// What the rows of a tile meet, in shared memory.
template <int kRows>
struct TileSpans {
  RowSpan of[kRows];  // {0, 0} past the last row
  RowSpan any, all;   // where some row meets something; where every row meets everything

  // Every thread of the block calls it, once.
  template <Side kSide>
  __device__ void fill(const AttentionShape& shape, int first) {
    if (threadIdx.x == 0) {
      any = {shape.rows, 0};
      all = {0, shape.rows};
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kRows; i += blockDim.x) {
      const RowSpan span = first + i < shape.rows ? span_of<kSide>(shape, first + i) : RowSpan{0, 0};
      of[i] = span;
      if (span.begin < span.end) {
        atomicMin(&any.begin, span.begin);
        atomicMax(&any.end, span.end);
      }
      atomicMax(&all.begin, span.begin);
      atomicMin(&all.end, span.end);
    }
    __syncthreads();
  }
  [[nodiscard]] __device__ int num_tiles(int tile) const { return any.begin < any.end ? (any.end - any.begin + tile - 1) / tile : 0; }
  [[nodiscard]] __device__ bool needs_mask(int begin, int end) const { return begin < all.begin || end > all.end; }
};

// The sum or maximum over the `lanes` lanes that differ in their low bits.
template <int kLanes, class A>
__device__ A lanes_sum(A value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffU, value, offset);
  return value;
}
template <int kLanes, class A>
__device__ A lanes_max(A value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) value = max(value, __shfl_xor_sync(0xffffffffU, value, offset));
  return value;
}

template <class T>
struct ForwardArgs {
  Rows<const T> q, k, v;
  Rows<T> out;
  Rows<Accumulate<T>> lse;
};

// lse and the row sum of out * ct of a query: `lse` in the base that the kernel takes its powers in.
template <class A>
struct alignas(2 * sizeof(A)) RowStatistics {
  A lse, delta;
};
template <class T>
struct BackwardArgs {
  Rows<const T> q, k, v, ct;
  Rows<T> ct_q, ct_k, ct_v;
  const RowStatistics<Accumulate<T>>* statistics;  // [num_heads, rows]
};

// On CUDA cores, in f64 or f32: any head size up to kMaxHeadSize, any scale.
template <class T>
void plain_forward(const AttentionShape& shape, const ForwardArgs<T>& args, cudaStream_t stream);
template <class T>
void plain_backward(const AttentionShape& shape, const BackwardArgs<T>& args, cudaStream_t stream);

// On tensor cores: head size up to 128, scale above 0. `partials`: see CudaVjpWorkspace; the statistics are in base 2.
bool serves_tensor_cores(const AttentionShape& shape, DType dtype);
void tensor_forward(const AttentionShape& shape, const ForwardArgs<__nv_bfloat16>& args, cudaStream_t stream);
void tensor_backward(const AttentionShape& shape, const BackwardArgs<__nv_bfloat16>& args, int splits, float* ct_k_partials,
                     float* ct_v_partials, cudaStream_t stream);

}  // namespace glim::cuda
