#include "runtime/cuda_products.h"

#include <algorithm>
#include <bit>

#include "runtime/cuda_error.h"
#include "runtime/cuda_timing.h"
#include "runtime/device.h"
#include "runtime/product_cache.h"

namespace glim {
namespace {

constexpr int kMaxCandidates = 24;
constexpr uint32_t kFixedOrder = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;  // none, or partial sums in the workspace

Status cublas_status(cublasStatus_t result, std::string_view what) {
  if (result == CUBLAS_STATUS_SUCCESS) return ok();
  return Error{ErrorCode::kDevice, fmt::format("{}: {}", what, cublasLtGetStatusName(result))};
}

cudaDataType_t cuda_type(DType dtype) { return dtype == DType::kF64 ? CUDA_R_64F : dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

uint32_t alignment_of(const void* pointer) { return 1U << std::min(8, std::countr_zero(reinterpret_cast<uintptr_t>(pointer))); }

// Sums in a fixed order, and no operand rounded to TF32, whatever the environment asks of the library.
bool is_exact(const cublasLtMatmulAlgo_t& algorithm, DType dtype) {
  uint32_t reduction = 0;
  uint64_t flags = 0;
  size_t written = 0;
  if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction, sizeof reduction, &written) ==
          CUBLAS_STATUS_SUCCESS &&
      (reduction & ~kFixedOrder) != 0)
    return false;
  const bool knows_flags = cublasLtMatmulAlgoCapGetAttribute(&algorithm, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS, &flags, sizeof flags,
                                                             &written) == CUBLAS_STATUS_SUCCESS;
  return dtype != DType::kF32 || !knows_flags || (flags & CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32) == 0;
}

// All that the library knows of an algorithm, which it lets its users keep and give back (to the same version of it).
std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm.data) text += fmt::format("{:016x}", word);
  text.resize(text.find_last_not_of('0') + 1);
  return text;
}

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

Status CudaProducts::open(ProductAlgorithms choice) {
  GLIM_TRY(cublas_status(cublasLtCreate(&handle_), "starting cuBLASLt"));
  choice_ = choice;
  if (choice_ == ProductAlgorithms::kTimed) {
    machine_ = fmt::format("{}, driver {}, {}", cuda_device_name(), cuda_driver(), cuda_libraries());
    known_ = read_product_cache(product_cache_path(), machine_);
  }
  return cuda_status(cudaMalloc(&workspace_, kProductsWorkspaceBytes),
                     fmt::format("cuBLASLt's workspace of {} bytes", kProductsWorkspaceBytes));
}

void CudaProducts::keep() {
  if (timed_.empty()) return;
  (void)write_product_cache(product_cache_path(), machine_, timed_);  // without it the next run times again
  timed_.clear();
}

AlgorithmChoices CudaProducts::algorithms() const {
  AlgorithmChoices all;
  if (choice_ == ProductAlgorithms::kFixed) return all;
  for (const auto& [key, plan] : plans_) all[describe(key)] = text_of(plan.algorithm);
  return all;
}

void CudaProducts::set_algorithms(const AlgorithmChoices& chosen) {
  for (const auto& [product, algorithm] : chosen) known_[product] = algorithm;
}

// The name of the product in caches and checkpoints.
std::string CudaProducts::describe(const Key& key) {
  return fmt::format("{} {}x{}x{}, strides {}{} {}{} {}, aligned to {} {} {}, {} {}", to_string(key.dtype), key.rows, key.depth,
                     key.columns, key.a_stride, key.a_transposed ? "t" : "", key.b_stride, key.b_transposed ? "t" : "", key.c_stride,
                     key.a_alignment, key.b_alignment, key.c_alignment, key.adds ? "added to" : "into", to_string(key.c_dtype));
}

// cuBLASLt stores columns first. A row-major [i, j] is its j x i, so c^T = op(b)^T op(a)^T needs no transposed copies: b is its left
// operand.
Status CudaProducts::describe_operands(const Key& key, Plan& plan) const {
  const auto check = [&](cublasStatus_t result) { return cublas_status(result, describe(key)); };
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
  return layout(plan.result, key.c_dtype, key.rows, key.columns, key.c_stride);
}

Result<CudaProducts::Candidates> CudaProducts::find_candidates(const Key& key, const Plan& plan) const {
  cublasLtMatmulPreference_t preference = nullptr;
  GLIM_TRY(cublas_status(cublasLtMatmulPreferenceCreate(&preference), describe(key)));
  const uint64_t workspace_bytes = kProductsWorkspaceBytes;
  cublasStatus_t result = CUBLAS_STATUS_SUCCESS;
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    if (result == CUBLAS_STATUS_SUCCESS) result = cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kFixedOrder);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.c_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.c_alignment);
  cublasLtMatmulHeuristicResult_t found[kMaxCandidates] = {};
  int num_found = 0;
  if (result == CUBLAS_STATUS_SUCCESS) {
    result = cublasLtMatmulAlgoGetHeuristic(handle_, plan.operation, plan.left, plan.right, plan.result, plan.result, preference,
                                            kMaxCandidates, found, &num_found);
  }
  cublasLtMatmulPreferenceDestroy(preference);
  GLIM_TRY(cublas_status(result, describe(key)));
  Candidates candidates;
  for (int k = 0; k < num_found; ++k) {
    if (found[k].state == CUBLAS_STATUS_SUCCESS && is_exact(found[k].algo, key.dtype)) candidates.push_back(found[k].algo);
  }
  if (candidates.empty()) return Error{ErrorCode::kDevice, fmt::format("{}: cuBLASLt knows no algorithm", describe(key))};
  return candidates;
}

// A text from outside is only ever compared with the candidates: it can name one of them, or none.
Status CudaProducts::choose(const Key& key, const DeviceProduct& product, cudaStream_t stream, Plan& plan) {
  GLIM_TRY(describe_operands(key, plan));
  GLIM_ASSIGN(const Candidates candidates, find_candidates(key, plan));
  plan.algorithm = candidates.front();
  if (choice_ == ProductAlgorithms::kFixed) return ok();
  const std::string name = describe(key);
  if (const auto known = known_.find(name); known != known_.end()) {
    const auto same = std::find_if(candidates.begin(), candidates.end(), [&](const auto& each) { return text_of(each) == known->second; });
    if (same != candidates.end()) {
      plan.algorithm = *same;
      return ok();
    }
  }
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  GLIM_TRY(cuda_status(cudaStreamIsCapturing(stream, &capturing), "asking a stream"));
  if (capturing != cudaStreamCaptureStatusNone) return ok();
  GLIM_ASSIGN(const size_t fastest, time_candidates(key, plan, candidates, product, stream));
  plan.algorithm = candidates[fastest];
  timed_[name] = text_of(plan.algorithm);
  return ok();
}

// On random numbers: products of zeros take less power, and so less time, than those of a model. On operands of its own where there is
// memory for them, otherwise on the product's. What is added to is never the product's.
Result<size_t> CudaProducts::time_candidates(const Key& key, const Plan& plan, const Candidates& candidates, DeviceProduct product,
                                             cudaStream_t stream) const {
  const auto span = [](int64_t rows, int64_t columns, int64_t stride, DType dtype) {
    return static_cast<size_t>((rows - 1) * stride + columns) * size_of(dtype);
  };
  const size_t a_bytes = span(key.a_transposed ? key.depth : key.rows, key.a_transposed ? key.rows : key.depth, key.a_stride, key.dtype);
  const size_t b_bytes =
      span(key.b_transposed ? key.columns : key.depth, key.b_transposed ? key.depth : key.columns, key.b_stride, key.dtype);
  const size_t c_bytes = key.adds ? span(key.rows, key.columns, key.c_stride, key.c_dtype) : 0;
  const RandomDeviceMemory operands(std::max(a_bytes, b_bytes), key.dtype, stream), sums(c_bytes, key.c_dtype, stream);
  if (operands.data() != nullptr) product.a.data = product.b.data = operands.data();
  if (key.adds && sums.data() == nullptr) return size_t{0};
  if (key.adds) product.c = sums.data();
  return fastest_of(candidates.size(), stream,
                    [&](size_t k) { return multiply(plan, candidates[k], product, stream) == CUBLAS_STATUS_SUCCESS; });
}

cublasStatus_t CudaProducts::multiply(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const DeviceProduct& p,
                                      cudaStream_t stream) const {
  const auto alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
  const bool wide = p.dtype == DType::kF64;
  const void *scale = wide ? static_cast<const void*>(&p.alpha) : &alpha, *keep = wide ? static_cast<const void*>(&p.beta) : &beta;
  return cublasLtMatmul(handle_, plan.operation, scale, p.b.data, plan.left, p.a.data, plan.right, keep, p.c, plan.result, p.c, plan.result,
                        &algorithm, workspace_, kProductsWorkspaceBytes, stream);
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
                p.b.transposed,
                p.beta != 0};
  auto found = plans_.find(key);
  if (found == plans_.end()) {
    found = plans_.try_emplace(key).first;
    if (Status chosen = choose(key, p, stream, found->second); !chosen) return chosen;
  }
  return cublas_status(multiply(found->second, found->second.algorithm, p, stream), "cublasLtMatmul");
}

}  // namespace glim
