#pragma once
#include <string>

namespace glim {

// Whether programs can run on an NVIDIA GPU here: this build has the CUDA backend, and the driver shows a device of the architecture
// that the kernels were compiled for. Otherwise `why_not` says what is missing.
[[nodiscard]] bool cuda_available(std::string& why_not);
// What can change last bits there: "NVIDIA H200", and "cuBLASLt 13.1.0, CUDA 13.0". Only where cuda_available() holds.
[[nodiscard]] std::string cuda_device_name();
[[nodiscard]] std::string cuda_libraries();

}  // namespace glim
