#pragma once
// Rows of a table by index (embedding, gather_rows). Bytes move: the element type does not matter.
#include "ops/device/device.cuh"

namespace glim::cuda {

// Word: as many bytes as base, row length and strides allow at once. Threads are x along a row and y along rows.
template <class Word>
__global__ void copy_table_rows(Rows<const Word> table, int64_t table_rows, const int32_t* indices, int64_t skip, Rows<Word> out,
                                int64_t rows, int64_t words, uint64_t* fault) {
  for (int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows;
       row += static_cast<int64_t>(gridDim.y) * blockDim.y) {
    const int32_t index = indices[row];
    const bool in_range = index >= 0 && index < table_rows;
    if (!in_range && index != skip && blockIdx.x == 0 && threadIdx.x == 0) report_value(fault, row, index);
    const bool is_copied = in_range && index != skip;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x)
      out[row][i] = is_copied ? table[index][i] : Word{};
  }
}

// out row i = table row indices[i]; zeros where the index is `skip` or out of range, which is reported unless it is `skip`.
// A skip that is no int32 skips nothing.
inline void gather_table_rows(const KernelArgs& k, const TensorView& table, const TensorView& indices, int64_t skip, const TensorView& out,
                              std::string_view what) {
  const int64_t rows = out.type.shape[0], size = static_cast<int64_t>(size_of(out.type.dtype)), row_bytes = out.type.shape[1] * size;
  if (rows == 0) return;
  uint64_t* const fault = k.context.data_fault(what, table.type.shape[0]);
  const auto launch = [&](auto word) {
    using Word = decltype(word);
    constexpr auto kBytes = static_cast<int64_t>(sizeof(Word));
    const RowGrid grid(rows, row_bytes / kBytes);
    copy_table_rows<Word><<<grid.blocks, grid.threads, 0, stream(k)>>>(
        {table.as<const Word>(), table.row_stride * size / kBytes}, table.type.shape[0], indices.as<int32_t>(), skip,
        {out.as<Word>(), out.row_stride * size / kBytes}, rows, row_bytes / kBytes, fault);
  };
  const auto all = reinterpret_cast<uintptr_t>(table.data) | reinterpret_cast<uintptr_t>(out.data) |
                   static_cast<uintptr_t>(table.row_stride * size) | static_cast<uintptr_t>(out.row_stride * size) |
                   static_cast<uintptr_t>(row_bytes);
  if (all % 16 == 0) return launch(uint4{});
  if (all % 8 == 0) return launch(uint2{});
  if (all % 4 == 0) return launch(uint32_t{});
  launch(uint16_t{});
}

}  // namespace glim::cuda
