#pragma once
// Matrix products through cuBLASLt. For the CUDA files of this folder only.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <map>
#include <vector>

#include "runtime/executable.h"

namespace glim {

// An algorithm is chosen once per shape, strides and alignment, among those that cuBLASLt's heuristics propose and that give the same bits
// every time: sums over a split depth are added up in the workspace in a fixed order, never by atomics. f32 is f32 (no TF32).
class CudaProducts {
 public:
  CudaProducts() = default;
  ~CudaProducts();
  CudaProducts(const CudaProducts&) = delete;
  CudaProducts& operator=(const CudaProducts&) = delete;

  Status open(ProductAlgorithms choice = ProductAlgorithms::kFixed);
  // Enqueues the product. Only the first one of a shape takes time: it allocates, and with kTimed it may run the candidates on the stream
  // and wait for them, on memory of its own and on `c` where that is overwritten anyway. Never while the stream is captured. Products of
  // one CudaProducts must be on one stream: they share the workspace.
  Status run(const DeviceProduct& product, cudaStream_t stream);
  // What was timed since the last call goes to the cache on disk, if it can be written.
  void keep();

  [[nodiscard]] AlgorithmChoices algorithms() const;  // see Executor
  void set_algorithms(const AlgorithmChoices& chosen);

 private:
  struct Key {
    int64_t rows, columns, depth, a_stride, b_stride, c_stride;
    uint32_t a_alignment, b_alignment, c_alignment;  // bytes, a power of two up to 256
    DType dtype, c_dtype;
    bool a_transposed, b_transposed, adds;
    auto operator<=>(const Key&) const = default;
  };
  struct Plan {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t left = nullptr, right = nullptr, result = nullptr;  // as cuBLASLt sees them: columns first
    cublasLtMatmulAlgo_t algorithm{};
  };
  using Candidates = std::vector<cublasLtMatmulAlgo_t>;

  static std::string describe(const Key& key);
  Status describe_operands(const Key& key, Plan& plan) const;
  Result<Candidates> find_candidates(const Key& key, const Plan& plan) const;
  Status choose(const Key& key, const DeviceProduct& product, cudaStream_t stream, Plan& plan);
  // The fastest one; the first where two are within two per cent of each other.
  Result<size_t> time_candidates(const Key& key, const Plan& plan, const Candidates& candidates, DeviceProduct product,
                                 cudaStream_t stream) const;
  cublasStatus_t multiply(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const DeviceProduct& product, cudaStream_t stream) const;

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;  // [kProductsWorkspaceBytes]
  std::map<Key, Plan> plans_;
  ProductAlgorithms choice_ = ProductAlgorithms::kFixed;
  AlgorithmChoices known_, timed_;  // from checkpoints and the cache; not yet in the cache
  std::string machine_;             // what the cache calls this GPU, driver and library
};

}  // namespace glim
