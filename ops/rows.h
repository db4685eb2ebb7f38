#pragma once
// Shared by the kernels that read or write whole rows through a table of indices.
#include <fmt/format.h>

#include <cstring>

#include "ops/cpu.h"

namespace glim::cpu {

inline bool in_range(int64_t index, int64_t limit) { return index >= 0 && index < limit; }

// Reports the first index that is neither in [0, limit) nor `skip`. The kernels leave such rows zero.
inline void check_indices(KernelContext& context, const TensorView& indices, int64_t limit, int64_t skip, std::string_view op,
                          std::string_view what) {
  const auto* index = indices.as<int32_t>();
  for (int64_t i = 0; i < indices.type.shape[0]; ++i) {
    if (in_range(index[i], limit) || index[i] == skip) continue;
    return context.fail(fmt::format("{}: {} {} at position {} is outside [0, {})", op, what, index[i], i, limit));
  }
}

// out row i = table row indices[i]; zeros where the index is `skip` or out of range.
inline void copy_rows(KernelContext& context, const TensorView& table, const TensorView& indices, int64_t skip, const TensorView& out) {
  const auto size = static_cast<int64_t>(size_of(out.type.dtype));
  const int64_t width = out.type.shape[1], limit = table.type.shape[0];
  const auto* index = indices.as<int32_t>();
  if (width == 0) return;
  for_row_ranges(context, out.type.shape[0], width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::byte* to = out.as<std::byte>() + row * out.row_stride * size;
      if (in_range(index[row], limit) && index[row] != skip) {
        std::memcpy(to, table.as<std::byte>() + index[row] * table.row_stride * size, static_cast<size_t>(width * size));
      } else {
        std::memset(to, 0, static_cast<size_t>(width * size));
      }
    }
  });
}

}  // namespace glim::cpu
