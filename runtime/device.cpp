#include "runtime/device.h"

#ifdef GLIM_HAS_CUDA
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#endif

namespace glim {

#ifdef GLIM_HAS_CUDA
bool cuda_available(std::string& why_not) {
  int num_devices = 0, major = 0, minor = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&num_devices); error != cudaSuccess) {
    why_not = cudaGetErrorString(error);
    cudaGetLastError();
    return false;
  }
  if (num_devices == 0) {
    why_not = "the driver shows no device";
    return false;
  }
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) != cudaSuccess || major != 9 || minor != 0) {
    why_not = fmt::format("the kernels are compiled for compute capability 9.0, the device has {}.{}", major, minor);
    return false;
  }
  return true;
}
#else
bool cuda_available(std::string& why_not) {
  why_not = "this build has no CUDA backend";
  return false;
}
#endif

}  // namespace glim
