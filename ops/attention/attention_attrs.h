#pragma once
// Apart from attention.h, because CUDA files include this (and no fmt).
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace glim::ops {

struct AttentionAttrs {
  int64_t num_heads, num_kv_heads;
  int64_t causal;  // key j is visible to query i only when j <= i
  int64_t window;  // w > 0: only the w nearest keys, itself included: i - w < j <= i, or |i - j| < w when not causal
  double scale;
};

inline constexpr int64_t kMaxHeadSize = 256;

// The backward pass on a GPU. For each query head and row, the workspace holds the log-sum-exp and the row sum of out * ct. With few
// key-value heads the query heads of a group are cut into `splits` parts, so that the passes over keys fill the GPU; the parts leave
// f32 sums in the workspace, which are then added in order. It depends on the shape alone, as the bits of the result do.
struct CudaVjpWorkspace {
  int64_t splits;
  size_t statistics_bytes, partial_bytes;  // the latter once for ct_k and once for ct_v
  [[nodiscard]] size_t bytes() const { return statistics_bytes + 2 * partial_bytes; }
};
inline CudaVjpWorkspace cuda_vjp_workspace(int64_t rows, int64_t head_size, const AttentionAttrs& attrs, size_t accumulation_bytes,
                                           bool is_bf16) {
  constexpr int64_t kKeyTile = 128, kEnoughBlocks = 512, kTensorHeadSize = 128;
  const auto rounded = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  CudaVjpWorkspace space{1, rounded(2 * accumulation_bytes * static_cast<size_t>(rows * attrs.num_heads)), 0};
  if (!is_bf16 || head_size > kTensorHeadSize) return space;
  const int64_t group = attrs.num_heads / attrs.num_kv_heads, blocks = (rows + kKeyTile - 1) / kKeyTile * attrs.num_kv_heads;
  const int64_t most = std::min(group, kEnoughBlocks);  // sizes may come from a file: no long search, no signed overflow
  while (space.splits < most && (group % space.splits != 0 || space.splits * blocks < kEnoughBlocks)) ++space.splits;
  if (group % space.splits != 0) space.splits = 1;
  if (space.splits > 1) {
    const auto elements = static_cast<size_t>(rows * attrs.num_kv_heads * space.splits);
    space.partial_bytes = rounded(elements * sizeof(float) * static_cast<size_t>(head_size <= 64 ? 64 : kTensorHeadSize));
  }
  return space;
}

}  // namespace glim::ops
