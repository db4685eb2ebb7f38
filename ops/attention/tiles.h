#pragma once
// How attention is cut into tiles: which segment a row is in, which keys a query sees, and one head's rows in the type of arithmetic.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "ops/attention/attention.h"
#include "ops/cpu.h"
#include "ops/gemm.h"
#include "ops/vector_math.h"

namespace glim::ops {

// A window makes tiles whose corners nobody sees; fewer queries leave less of that.
inline constexpr int64_t kQueryTile = 48, kKeyTile = 64;

struct Range {
  int64_t begin, end;
  [[nodiscard]] bool empty() const { return begin >= end; }
};
inline Range intersect(Range a, Range b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

struct Segments {
  const int32_t* starts;  // [count + 1], ascending, within [0, num_rows]
  int64_t count, num_rows;

  // Reports a table that is not valid, and then takes no row to be in a segment.
  static Segments checked(const TensorView& table, int64_t num_rows, KernelContext& context);
  // Calls body(rows, segment) for each part of `rows` that lies in one segment, and outside(rows) for the others.
  template <class Body, class Outside>
  void for_each_part(Range rows, Body&& body, Outside&& outside) const {
    const int32_t* const end = starts + count + 1;
    for (int64_t row = rows.begin; row < rows.end;) {
      const int32_t* const next = count > 0 ? std::upper_bound(starts, end, row) : end;
      if (count == 0 || next == end) {
        outside(Range{row, rows.end});
        return;
      }
      const int64_t stop = std::min<int64_t>(*next, rows.end);
      if (next == starts)
        outside(Range{row, stop});
      else
        body(Range{row, stop}, Range{next[-1], *next});
      row = stop;
    }
  }
};

struct Visibility {
  bool causal;
  int64_t window;
  // The keys that query i sees.
  [[nodiscard]] Range keys(int64_t i, Range segment) const {
    return {window > 0 ? std::max(segment.begin, i - window + 1) : segment.begin, causal       ? i + 1
                                                                                  : window > 0 ? std::min(segment.end, i + window)
                                                                                               : segment.end};
  }
  // The keys that any of the queries sees, and the queries that see any of the keys.
  [[nodiscard]] Range keys_of(Range queries, Range segment) const {
    return {keys(queries.begin, segment).begin, keys(queries.end - 1, segment).end};
  }
  [[nodiscard]] Range queries_of(Range keys, Range segment) const {
    return {causal       ? keys.begin
            : window > 0 ? std::max(segment.begin, keys.begin - window + 1)
                         : segment.begin,
            window > 0 ? std::min(segment.end, keys.end - 1 + window) : segment.end};
  }
};

// One head's columns of a row range [rows, d] in A: in place, or widened into kRows x kMaxHeadSize scratch.
template <class A, class T, int64_t kRows>
class Panel {
 public:
  cpu::Matrix<A> load(const TensorView& from, int64_t head, int64_t head_size, Range rows) {
    const T* first = from.row<T>(rows.begin) + head * head_size;
    if constexpr (std::is_same_v<A, T>) {
      return {first, from.row_stride};
    } else {
      for (int64_t i = 0; i < rows.end - rows.begin; ++i) {
        for (int64_t c = 0; c < head_size; ++c) scratch_[i * head_size + c] = static_cast<A>(first[i * from.row_stride + c]);
      }
      return {scratch_, head_size};
    }
  }

 private:
  alignas(64) A scratch_[std::is_same_v<A, T> ? 1 : kRows * kMaxHeadSize];
};

template <class T>
cpu::Matrix<T> transposed(cpu::Matrix<T> matrix) {
  return {matrix.data, matrix.row_stride, !matrix.transposed};
}

}  // namespace glim::ops
