// *count > threshold, as the condition of a captured graph's conditional node (CUDA programming guide, "Conditional Graph Nodes").
#include "ops/device/condition.h"

#include <cuda_runtime.h>

namespace glim::cuda {
namespace {

__global__ void compare(cudaGraphConditionalHandle handle, const int64_t* count, int64_t threshold) {
  cudaGraphSetConditional(handle, *count > threshold ? 1 : 0);
}

}  // namespace

void set_condition(unsigned long long handle, const int64_t* count, int64_t threshold, void* stream) {
  compare<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(handle, count, threshold);
}

}  // namespace glim::cuda
