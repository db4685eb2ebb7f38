#pragma once
// How the kernels of sum_of_squares cut a tensor: a partial sum per tile, a few rows or a part of a long one. Rank 1 is one long row.
#include <algorithm>
#include <cstdint>

#include "engine/type.h"

namespace glim::ops {

inline constexpr int64_t kTile = 4096;  // columns of one task
inline int64_t tiles_per_row(const Shape& shape) { return (shape.last() + kTile - 1) / kTile; }
inline int64_t rows_per_task(const Shape& shape) { return std::max<int64_t>(1, kTile / std::max<int64_t>(1, shape.last())); }
inline int64_t num_tasks(const Shape& shape) {
  return (shape.rows() + rows_per_task(shape) - 1) / rows_per_task(shape) * tiles_per_row(shape);
}

}  // namespace glim::ops
