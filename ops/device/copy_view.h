#pragma once
// Moving tensors on the device, for kernels and for the copies of the memory plan. No CUDA header: executors include this.
#include "engine/op.h"
#include "engine/tensor_view.h"

namespace glim::cuda {

// The part of a rank-1 or rank-2 tensor that has this shape and starts at this row and column (rank 1: a column of rows one wide).
inline TensorView part_of(const TensorView& whole, Region at, const Shape& shape) {
  const int64_t stride = shape.rank == 2 ? whole.row_stride : 1;
  std::byte* const first = whole.as<std::byte>() + (at.row * stride + at.column) * static_cast<int64_t>(size_of(whole.type.dtype));
  return {first, {whole.type.dtype, shape}, shape.rank == 2 ? whole.row_stride : shape.last()};
}
// Enqueues `to` = `from` (one type, either may have wide rows) on a cudaStream_t. A tensor that lies where it should already is left alone.
void copy_view(const TensorView& from, const TensorView& to, void* stream);
// Enqueues `to` = 0 (all bits 0) on a cudaStream_t.
void clear_view(const TensorView& to, void* stream);

}  // namespace glim::cuda
