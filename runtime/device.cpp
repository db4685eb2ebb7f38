#include "runtime/device.h"

#ifdef GLIM_HAS_CUDA
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <fstream>
#endif

namespace glim {

#ifdef GLIM_HAS_CUDA
bool cuda_available(std::string& why_not) {
  int num_devices = 0, major = 0, minor = 0;
  const cudaError_t error = cudaGetDeviceCount(&num_devices);
  if (error != cudaSuccess) cudaGetLastError();  // not an error of what comes next
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
      why_not = "there is no NVIDIA driver on this machine";
    else
      why_not = fmt::format("the NVIDIA driver is too old: it supports CUDA {}.{}, this build needs {}.{}", driver / 1000,
                            driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    return false;
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && num_devices == 0)) {
    why_not = "the NVIDIA driver shows no device";
    return false;
  }
  if (error != cudaSuccess) {
    why_not = cudaGetErrorString(error);
    return false;
  }
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) != cudaSuccess || major != 9 || minor != 0) {
    why_not = fmt::format("the kernels are compiled for compute capability 9.0, the device has {}.{}", major, minor);
    return false;
  }
  return true;
}

std::string cuda_device_name() {
  int device = 0;
  cudaDeviceProp properties{};
  if (cudaGetDevice(&device) != cudaSuccess || cudaGetDeviceProperties(&properties, device) != cudaSuccess) return "unknown";
  return properties.name;
}

std::string cuda_libraries() {
  const size_t products = cublasLtGetVersion();
  int runtime = 0;
  cudaRuntimeGetVersion(&runtime);
  return fmt::format("cuBLASLt {}.{}.{}, CUDA {}.{}", products / 10000, products % 10000 / 100, products % 100, runtime / 1000,
                     runtime % 1000 / 10);
}

std::string cuda_driver() {
  int version = 0;
  cudaDriverGetVersion(&version);
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  ..."; where it cannot be read, the CUDA version has to do
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word, found;
  while (found.empty() && file >> word) {
    if (word.find_first_not_of("0123456789.") == std::string::npos && word.find('.') != std::string::npos) found = word + " ";
  }
  return fmt::format("{}(CUDA {}.{})", found, version / 1000, version % 1000 / 10);
}
#else
bool cuda_available(std::string& why_not) {
  why_not = "this program was built without the CUDA toolkit (there was no nvcc; see GLIM_CUDA in cmake/options.cmake)";
  return false;
}
std::string cuda_device_name() { return ""; }
std::string cuda_libraries() { return ""; }
std::string cuda_driver() { return ""; }
#endif

}  // namespace glim
