#pragma once
// For the CUDA files of this folder only.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "engine/error.h"

namespace glim {

// `what` says what was being done.
inline Status cuda_status(cudaError_t result, std::string_view what) {
  if (result == cudaSuccess) return ok();
  const ErrorCode code = result == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kDevice;
  return Error{code, fmt::format("{}: {} ({})", what, cudaGetErrorString(result), cudaGetErrorName(result))};
}

}  // namespace glim
