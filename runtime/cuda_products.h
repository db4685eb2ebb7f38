#pragma once
// Matrix products through cuBLASLt. For the CUDA files of this folder only.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <map>

#include "ops/kernel_context.h"

namespace glim {

// Algorithms come from cuBLASLt's heuristics, once per shape and alignment, without timing: the choice depends on nothing but the product,
// so the same product gives the same bits in every run. f32 is f32 (no TF32); reductions over split depths go through the workspace.
class CudaProducts {
 public:
  CudaProducts() = default;
  ~CudaProducts();
  CudaProducts(const CudaProducts&) = delete;
  CudaProducts& operator=(const CudaProducts&) = delete;

  Status open();
  // Enqueues the product. Only the first one of a shape allocates (host memory). Products of one CudaProducts must be on one stream: they
  // share the workspace.
  Status run(const DeviceProduct& product, cudaStream_t stream);

 private:
  struct Key {
    int64_t rows, columns, depth, a_stride, b_stride, c_stride;
    uint32_t a_alignment, b_alignment, c_alignment;  // bytes, a power of two up to 256
    DType dtype, c_dtype;
    bool a_transposed, b_transposed;
    auto operator<=>(const Key&) const = default;
  };
  struct Plan {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t left = nullptr, right = nullptr, result = nullptr;  // as cuBLASLt sees them: columns first
    cublasLtMatmulAlgo_t algorithm{};
  };
  Status choose(const Key& key, Plan& plan) const;

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace glim
