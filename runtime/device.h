#pragma once
#include <cstddef>
#include <string>

namespace glim {

// Whether programs can run on an NVIDIA GPU here: this build has the CUDA backend, and the driver shows a device of the architecture
// that the kernels were compiled for. Otherwise `why_not` says what is missing.
[[nodiscard]] bool cuda_available(std::string& why_not);
// What can change last bits there: "NVIDIA H200", and "cuBLASLt 13.1.0, CUDA 13.0". Only where cuda_available() holds.
[[nodiscard]] std::string cuda_device_name();
[[nodiscard]] std::string cuda_libraries();
// "580.95.05 (CUDA 13.0)"
[[nodiscard]] std::string cuda_driver();
// Device memory that cuBLASLt may use while it multiplies, one piece per executor: what NVIDIA recommends for Hopper.
inline constexpr size_t kProductsWorkspaceBytes = size_t{32} << 20;

}  // namespace glim
