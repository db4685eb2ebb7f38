#pragma once
// One attention node as a graph of cuDNN's. No header of cuDNN's here: only graph.cpp includes those.
#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/error.h"
#include "ops/attention/attention_attrs.h"

namespace glim {

enum class CudnnPass : uint8_t { kForward, kBackward };

// What decides a plan. q, k, v, out and their cotangents are bf16 [rows, heads * head_size] with rows a multiple of 16 bytes apart.
struct CudnnProblem {
  CudnnPass pass;
  int64_t rows, num_segments, head_size;
  int64_t num_heads, num_kv_heads, window;
  bool causal;
  double scale;
  // Of q, k, v, out, lse; backward then ct, ct_q, ct_k, ct_v. Elements.
  std::vector<int32_t> row_strides;
  auto operator<=>(const CudnnProblem&) const = default;
};

// Deterministic: the same operands, the same bits.
class CudnnGraph {
 public:
  [[nodiscard]] static bool is_built();  // with cuDNN's headers; otherwise nothing is served
  // An error says why cuDNN does not serve it.
  static Result<std::unique_ptr<CudnnGraph>> create(const CudnnProblem& problem);
  ~CudnnGraph();
  [[nodiscard]] size_t workspace_bytes() const;
  // Tensors as in row_strides. `lengths`: int32 [num_segments], `offsets`: int32 [tensors, num_segments + 1], elements.
  Status run(std::span<void* const> tensors, int32_t* lengths, int32_t* offsets, void* workspace, void* stream);

 private:
  struct Parts;
  explicit CudnnGraph(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace glim
