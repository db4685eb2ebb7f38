#pragma once
// Attention by a library beside the kernels of this folder: an executor that has one makes its KernelContext an AttentionLibrary too.
#include "ops/kernel_context.h"

namespace glim::ops {

class AttentionLibrary {
 public:
  virtual ~AttentionLibrary() = default;
  // The user wants the library wherever it serves.
  [[nodiscard]] virtual bool is_forced() const = 0;
  // Enqueues an `attention` or `attention_vjp` node on its context's stream. False where the library does not serve the node; what was
  // enqueued until then wrote to nothing but outputs, and the kernels of this folder write all of those.
  virtual bool attention(const KernelArgs& k) = 0;
  virtual bool attention_vjp(const KernelArgs& k) = 0;
};

}  // namespace glim::ops

namespace glim::cuda {

// A segment table i32[num_segments + 1] as libraries want it: how many rows each segment has, and at which element of a tensor it starts.
// Starts are clamped to [0, rows], so that no table leads outside of a tensor.
struct SegmentTable {
  static constexpr int kMaxTensors = 9;
  const int32_t* starts;
  int num_segments, rows;
  int num_tensors;
  int32_t row_strides[kMaxTensors];  // elements; rows * stride fits
  int32_t* lengths;                  // [num_segments]
  int32_t* offsets;                  // [num_tensors, num_segments + 1]
};
// Tensors whose rows outside of all segments become 0: libraries leave them as they are.
struct ClearedRows {
  static constexpr int kMaxTensors = 3;
  int num_tensors;
  struct {
    uint16_t* data;
    int64_t row_stride, width;  // in units of two bytes
  } tensors[kMaxTensors];
};
// Fills `lengths` and `offsets`, and clears, on a stream (cudaStream_t).
void describe_segments(const SegmentTable& table, const ClearedRows& cleared, void* stream);

}  // namespace glim::cuda
