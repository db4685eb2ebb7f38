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
