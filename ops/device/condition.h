#pragma once
// Parts of a captured step that run only when a number on the device says so. No CUDA header: executors include this.
#include <cstdint>

namespace glim::cuda {

// Enqueues, while a step is being captured on a cudaStream_t: the graph's condition `handle` (cudaGraphConditionalHandle) becomes
// *count > threshold.
void set_condition(unsigned long long handle, const int64_t* count, int64_t threshold, void* stream);

}  // namespace glim::cuda
