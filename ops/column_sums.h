#pragma once
// Sums over the rows of a matrix (bias gradients, norm weight gradients). Accumulation rule: fixed chunks of rows, each summed in
// order in f64 into its own row of the workspace; then the chunks are added in order.
#include "ops/cpu.h"

namespace glim::cpu {

inline constexpr int64_t kRowsPerChunk = 128;
inline int64_t num_row_chunks(int64_t rows) { return (rows + kRowsPerChunk - 1) / kRowsPerChunk; }
// Workspace that column_sums needs.
inline size_t column_sums_bytes(int64_t rows, int64_t width) { return static_cast<size_t>(num_row_chunks(rows) * width) * sizeof(double); }

// Calls write(i, sum over rows) for each i of [0, width); add_row(row, double* sums [width]) adds one row's contribution, and is called
// once per row.
template <class AddRow, class Write>
void column_sums(KernelContext& context, int64_t rows, int64_t width, double* partials, AddRow&& add_row, Write&& write) {
  const int64_t chunks = num_row_chunks(rows);
  context.parallel_for(chunks, [&](int64_t chunk) {
    double* sums = partials + chunk * width;
    std::fill_n(sums, width, 0.0);
    const int64_t end = std::min(rows, (chunk + 1) * kRowsPerChunk);
    for (int64_t row = chunk * kRowsPerChunk; row < end; ++row) add_row(row, sums);
  });
  for_row_ranges(context, width, chunks, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double sum = 0;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += partials[chunk * width + i];
      write(i, sum);
    }
  });
}

// The same, into out [width].
template <class T, class AddRow>
void column_sums(KernelContext& context, int64_t rows, int64_t width, double* partials, T* out, AddRow&& add_row) {
  column_sums(context, rows, width, partials, add_row, [out](int64_t i, double sum) { out[i] = T(sum); });
}

}  // namespace glim::cpu
