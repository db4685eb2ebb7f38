// Copies as the device's own memory copies: they need no kernel, and a captured step replays them like one.
#include "ops/device/copy_view.h"
#include "ops/device/device.cuh"

namespace glim::cuda {

void copy_view(const TensorView& from, const TensorView& to, void* stream) {
  if (from.data == to.data || to.type.shape.numel() == 0) return;
  const auto on = static_cast<cudaStream_t>(stream);
  if (from.contiguous() && to.contiguous()) {
    cudaMemcpyAsync(to.data, from.data, to.type.bytes(), cudaMemcpyDeviceToDevice, on);
    return;
  }
  const size_t element = size_of(to.type.dtype);
  cudaMemcpy2DAsync(to.data, static_cast<size_t>(to.row_stride) * element, from.data, static_cast<size_t>(from.row_stride) * element,
                    static_cast<size_t>(to.type.shape[1]) * element, static_cast<size_t>(to.type.shape[0]), cudaMemcpyDeviceToDevice, on);
}

void clear_view(const TensorView& to, void* stream) {
  if (to.type.shape.numel() == 0) return;
  const auto on = static_cast<cudaStream_t>(stream);
  if (to.contiguous()) {
    cudaMemsetAsync(to.data, 0, to.type.bytes(), on);
    return;
  }
  const size_t element = size_of(to.type.dtype);
  cudaMemset2DAsync(to.data, static_cast<size_t>(to.row_stride) * element, 0, static_cast<size_t>(to.type.shape[1]) * element,
                    static_cast<size_t>(to.type.shape[0]), on);
}

void copy(const KernelArgs& k) { copy_view(k.in[0], k.out[0], k.context.stream()); }

}  // namespace glim::cuda
