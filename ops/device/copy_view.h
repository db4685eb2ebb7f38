#pragma once
// Moving tensors on the device, for kernels and for the copies of the memory plan. No CUDA header: executors include this.
#include "engine/tensor_view.h"

namespace glim::cuda {

// Enqueues `to` = `from` (one type, either may have wide rows) on a cudaStream_t. A tensor that lies where it should already is left alone.
void copy_view(const TensorView& from, const TensorView& to, void* stream);
// Enqueues `to` = 0 (all bits 0) on a cudaStream_t.
void clear_view(const TensorView& to, void* stream);

}  // namespace glim::cuda
