#include "runtime/cuda_products.h"

#include <algorithm>
#include <bit>

#include "runtime/cuda_error.h"

namespace glim {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what NVIDIA recommends for Hopper

Status cublas_status(cublasStatus_t result, std::string_view what) {
  if (result == CUBLAS_STATUS_SUCCESS) return ok();
  return Error{ErrorCode::kDevice, fmt::format("{}: {}", what, cublasLtGetStatusName(result))};
}

cudaDataType_t cuda_type(DType dtype) { return dtype == DType::kF64 ? CUDA_R_64F : dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

uint32_t alignment_of(const void* pointer) { return 1U << std::min(8, std::countr_zero(reinterpret_cast<uintptr_t>(pointer))); }

}  // namespace

CudaProducts::~CudaProducts() {
  for (auto& [key, plan] : plans_) {
    if (plan.operation != nullptr) cublasLtMatmulDescDestroy(plan.operation);
    for (const cublasLtMatrixLayout_t layout : {plan.left, plan.right, plan.result}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
  }
  if (workspace_ != nullptr) cudaFree(workspace_);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

Status CudaProducts::open() {
  GLIM_TRY(cublas_status(cublasLtCreate(&handle_), "starting cuBLASLt"));
  return cuda_status(cudaMalloc(&workspace_, kWorkspaceBytes), fmt::format("cuBLASLt's workspace of {} bytes", kWorkspaceBytes));
}

// cuBLASLt stores columns first. A row-major [i, j] is its j x i, so c^T = op(b)^T op(a)^T needs no transposed copies: b is its left
// operand.
Status CudaProducts::choose(const Key& key, Plan& plan) const {
  const std::string what =
      fmt::format("a product [{}, {}] x [{}, {}] in {}", key.rows, key.depth, key.depth, key.columns, to_string(key.dtype));
  const auto check = [&](cublasStatus_t result) { return cublas_status(result, what); };
  const bool wide = key.dtype == DType::kF64;
  GLIM_TRY(
      check(cublasLtMatmulDescCreate(&plan.operation, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, wide ? CUDA_R_64F : CUDA_R_32F)));
  const auto transpose = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const cublasOperation_t left = transpose(key.b_transposed), right = transpose(key.a_transposed);
  GLIM_TRY(check(cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof left)));
  GLIM_TRY(check(cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof right)));
  const auto layout = [&](cublasLtMatrixLayout_t& to, DType dtype, int64_t rows, int64_t columns, int64_t stride) {
    // A matrix of one row may have any stride in a view; cuBLASLt wants one that spans the row.
    return check(cublasLtMatrixLayoutCreate(&to, cuda_type(dtype), static_cast<uint64_t>(columns), static_cast<uint64_t>(rows),
                                            std::max(stride, columns)));
  };
  GLIM_TRY(
      layout(plan.left, key.dtype, key.b_transposed ? key.columns : key.depth, key.b_transposed ? key.depth : key.columns, key.b_stride));
  GLIM_TRY(layout(plan.right, key.dtype, key.a_transposed ? key.depth : key.rows, key.a_transposed ? key.rows : key.depth, key.a_stride));
  GLIM_TRY(layout(plan.result, key.c_dtype, key.rows, key.columns, key.c_stride));
  cublasLtMatmulPreference_t preference = nullptr;
  GLIM_TRY(check(cublasLtMatmulPreferenceCreate(&preference)));
  const uint64_t workspace_bytes = kWorkspaceBytes;
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;  // none, or partial sums in the workspace
  cublasStatus_t result = CUBLAS_STATUS_SUCCESS;
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    if (result == CUBLAS_STATUS_SUCCESS) result = cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.c_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.c_alignment);
  cublasLtMatmulHeuristicResult_t found{};
  int num_found = 0;
  if (result == CUBLAS_STATUS_SUCCESS) {
    result = cublasLtMatmulAlgoGetHeuristic(handle_, plan.operation, plan.left, plan.right, plan.result, plan.result, preference, 1, &found,
                                            &num_found);
  }
  cublasLtMatmulPreferenceDestroy(preference);
  GLIM_TRY(check(result));
  if (num_found == 0) return Error{ErrorCode::kDevice, fmt::format("{}: cuBLASLt knows no algorithm", what)};
  plan.algorithm = found.algo;
  return ok();
}

Status CudaProducts::run(const DeviceProduct& p, cudaStream_t stream) {
  if (p.rows == 0 || p.columns == 0) return ok();
  if (p.depth == 0) {  // an empty sum
    GLIM_CHECK(p.beta == 0 || p.beta == 1, "an empty product can clear or keep what it adds to");
    if (p.beta == 1) return ok();
    const size_t element = size_of(p.c_dtype);
    return cuda_status(cudaMemset2DAsync(p.c, static_cast<size_t>(p.c_row_stride) * element, 0, static_cast<size_t>(p.columns) * element,
                                         static_cast<size_t>(p.rows), stream),
                       "an empty product");
  }
  const Key key{p.rows,
                p.columns,
                p.depth,
                p.a.row_stride,
                p.b.row_stride,
                p.c_row_stride,
                alignment_of(p.a.data),
                alignment_of(p.b.data),
                alignment_of(p.c),
                p.dtype,
                p.c_dtype,
                p.a.transposed,
                p.b.transposed};
  const auto [entry, is_new] = plans_.try_emplace(key);
  const Plan& plan = entry->second;
  if (is_new) {
    if (Status chosen = choose(key, entry->second); !chosen) return chosen;
  }
  const auto alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
  const bool wide = p.dtype == DType::kF64;
  const void *scale = wide ? static_cast<const void*>(&p.alpha) : &alpha, *keep = wide ? static_cast<const void*>(&p.beta) : &beta;
  return cublas_status(cublasLtMatmul(handle_, plan.operation, scale, p.b.data, plan.left, p.a.data, plan.right, keep, p.c, plan.result,
                                      p.c, plan.result, &plan.algorithm, workspace_, kWorkspaceBytes, stream),
                       "cublasLtMatmul");
}

}  // namespace glim
