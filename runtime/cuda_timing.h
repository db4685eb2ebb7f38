#pragma once
// Finding the fastest of several ways to do the same. For the CUDA files of this folder only.
#include <cuda_runtime_api.h>

#include <cstddef>

#include "engine/dtype.h"
#include "ops/kernel_context.h"

namespace glim {

// Device memory that is full of normal numbers, for as long as this lives. No data() where there is no memory (or nothing was asked for).
class RandomDeviceMemory {
 public:
  RandomDeviceMemory(size_t bytes, DType dtype, cudaStream_t stream);
  ~RandomDeviceMemory();
  RandomDeviceMemory(const RandomDeviceMemory&) = delete;
  RandomDeviceMemory& operator=(const RandomDeviceMemory&) = delete;
  [[nodiscard]] void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// Runs each way several times on the stream, which must not be captured, and waits. run(k) enqueues way k, and says whether it could. The
// fastest one: the first of those that are within two per cent of the best time. An error of the device is the caller's.
Result<size_t> fastest_of(size_t num_ways, cudaStream_t stream, FunctionRef<bool(size_t)> run);

}  // namespace glim
