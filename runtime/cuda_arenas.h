#pragma once
#include "runtime/arenas.h"

namespace glim {

// The memory of a model on the current CUDA device: one allocation per arena, made once, shared by all of its programs.
class CudaArenas : public ArenaBases {
 public:
  CudaArenas() = default;
  ~CudaArenas();
  CudaArenas(CudaArenas&& other) noexcept : ArenaBases(std::exchange(static_cast<ArenaBases&>(other), {})) {}
  CudaArenas& operator=(CudaArenas&& other) noexcept;
  CudaArenas(const CudaArenas&) = delete;
  CudaArenas& operator=(const CudaArenas&) = delete;

  // Device memory, zeroed, 256-byte aligned. kOutOfMemory names the arena and its size.
  static Result<CudaArenas> allocate(const std::array<size_t, kNumArenas>& bytes);
};

}  // namespace glim
