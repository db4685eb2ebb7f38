#include "runtime/cuda_arenas.h"

#include "runtime/cuda_error.h"

namespace glim {

CudaArenas::~CudaArenas() {
  for (std::byte* base : base_) {
    if (base != nullptr) cudaFree(base);
  }
}

CudaArenas& CudaArenas::operator=(CudaArenas&& other) noexcept {
  std::swap(static_cast<ArenaBases&>(*this), static_cast<ArenaBases&>(other));
  return *this;
}

Result<CudaArenas> CudaArenas::allocate(const std::array<size_t, kNumArenas>& bytes) {
  size_t needed = 0, free = 0, total = 0;
  std::string parts;
  for (size_t a = 0; a < kNumArenas; ++a) {
    if (bytes[a] == 0) continue;
    needed += bytes[a];
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", to_string(static_cast<Arena>(a)), bytes[a]);
  }
  GLIM_TRY(cuda_status(cudaMemGetInfo(&free, &total), "asking for the device's memory"));
  if (needed > free) {
    return Error{
        ErrorCode::kOutOfMemory,
        fmt::format("the plan needs {} bytes of device memory ({}), but {} of {} are free; activations shrink with fewer tokens (T) "
                    "and with rematerialise = \"selective\" or \"full\", parameters with dtype = \"bf16\"",
                    needed, parts, free, total)};
  }
  CudaArenas arenas;
  for (size_t a = 0; a < kNumArenas; ++a) {
    if (bytes[a] == 0) continue;
    void* base = nullptr;
    const std::string what = fmt::format("the {} arena needs {} bytes of device memory", to_string(static_cast<Arena>(a)), bytes[a]);
    const cudaError_t result = cudaMalloc(&base, bytes[a]);
    if (result != cudaSuccess) cudaGetLastError();  // not an error of the next launch
    GLIM_TRY(cuda_status(result, what));
    arenas.base_[a] = static_cast<std::byte*>(base);
    arenas.bytes_[a] = bytes[a];
    GLIM_TRY(cuda_status(cudaMemset(base, 0, bytes[a]), what));
  }
  GLIM_TRY(cuda_status(cudaDeviceSynchronize(), "clearing the arenas"));  // streams of executors do not wait for the default one
  return arenas;
}

}  // namespace glim
