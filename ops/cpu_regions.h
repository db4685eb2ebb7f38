#pragma once
// Moving rectangles of rank-1 and rank-2 tensors (contiguous ones of any rank) whatever their element type. The element type does not
// matter: bytes move.
#include <cstring>

#include "ops/cpu.h"

namespace glim::cpu {

// The first byte of element (row, column); a rank-1 tensor is a column of rows one element wide.
inline std::byte* element(const TensorView& view, Region at) {
  const int64_t stride = view.type.shape.rank == 2 ? view.row_stride : 1;
  return view.as<std::byte>() + (at.row * stride + at.column) * static_cast<int64_t>(size_of(view.type.dtype));
}

// Copies a region of the given shape from one tensor to another of the same dtype. A region that lies where it should already is left
// alone.
inline void copy_region(KernelContext& context, const TensorView& from, Region from_at, const TensorView& to, Region to_at,
                        const Shape& shape) {
  if (shape.numel() == 0) return;
  const std::byte* source = element(from, from_at);
  std::byte* target = element(to, to_at);
  if (source == target) return;
  const auto size = static_cast<int64_t>(size_of(to.type.dtype));
  if (shape.rank != 2) {  // contiguous
    const int64_t count = shape.numel(), tasks = (count + kElementsPerTask - 1) / kElementsPerTask;
    context.parallel_for(tasks, [&](int64_t task) {
      const int64_t begin = task * kElementsPerTask, length = std::min(kElementsPerTask, count - begin);
      std::memcpy(target + begin * size, source + begin * size, static_cast<size_t>(length * size));
    });
    return;
  }
  for_row_ranges(context, shape[0], shape[1], [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(target + row * to.row_stride * size, source + row * from.row_stride * size, static_cast<size_t>(shape[1] * size));
    }
  });
}

// Sets a whole tensor to zero (all bits 0, which is 0 in every dtype).
inline void clear(KernelContext& context, const TensorView& view) {
  const auto size = static_cast<int64_t>(size_of(view.type.dtype));
  const int64_t width = view.type.shape.last();
  if (view.type.shape.numel() == 0) return;
  for_row_ranges(context, view.type.shape.rows(), width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      std::memset(view.as<std::byte>() + row * view.row_stride * size, 0, static_cast<size_t>(width * size));
  });
}

}  // namespace glim::cpu
