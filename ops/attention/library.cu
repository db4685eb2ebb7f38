// What a library needs beside its own kernels: the segment table in its terms, and zeros where no segment is.
#include "ops/attention/attention.cuh"
#include "ops/attention/library.h"

namespace glim::cuda {
namespace {

constexpr int kTableThreads = 256, kClearThreads = 128;

__global__ void fill_table(SegmentTable table) {
  const int g = static_cast<int>(blockIdx.x) * kTableThreads + static_cast<int>(threadIdx.x);
  if (g > table.num_segments) return;
  const auto start = [&](int segment) { return min(max(table.starts[segment], 0), table.rows); };
  if (g < table.num_segments) table.lengths[g] = max(start(g + 1) - start(g), 0);
  for (int t = 0; t < table.num_tensors; ++t) table.offsets[t * (table.num_segments + 1) + g] = start(g) * table.row_strides[t];
}

// A block per row.
__global__ void clear_rows(AttentionShape shape, ClearedRows cleared) {
  const int row = static_cast<int>(blockIdx.x);
  const RowSpan seen = span_of<Side::kQueries>(shape, row);
  if (seen.begin < seen.end) return;
  for (int t = 0; t < cleared.num_tensors; ++t) {
    const auto& tensor = cleared.tensors[t];
    for (int64_t i = threadIdx.x; i < tensor.width; i += kClearThreads) tensor.data[row * tensor.row_stride + i] = 0;
  }
}

}  // namespace

void describe_segments(const SegmentTable& table, const ClearedRows& cleared, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  fill_table<<<static_cast<unsigned>(table.num_segments / kTableThreads + 1), kTableThreads, 0, on>>>(table);
  const AttentionShape shape{table.starts, table.num_segments, table.rows, 1, 1, 1, true, 0, 1.0};
  clear_rows<<<static_cast<unsigned>(table.rows), kClearThreads, 0, on>>>(shape, cleared);
}

}  // namespace glim::cuda
