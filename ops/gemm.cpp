#include "ops/gemm.h"

#include "ops/cpu.h"
#include "ops/gemm_panels.h"
#include "ops/vector_math.h"

#ifdef GLIM_OPENBLAS
#include <cblas.h>
#endif

namespace glim::cpu {
namespace {

// Each tile packs b, and also an `a` that cannot be read where it lies: then the tile is about square, and the block of a fits in the
// second cache; otherwise it is high, so that little of b is packed twice. A panel of b fits in the first cache.
constexpr int64_t kTileRows = 516, kTileColumns = 64, kPackedTileRows = 264, kPackedTileColumns = 256, kTileDepth = 256;
constexpr int64_t kFewTasks = 8;       // fewer tasks than this: they are cut finer
constexpr int64_t kFewRows = 3;        // no more rows than this do not pay for packing b
constexpr int64_t kNearBytes = 16384;  // a transposed `a` within this span stays in the first cache: it is read where it lies
static_assert(kTileRows % kPanelRows == 0 && kPackedTileRows % kPanelRows == 0 && kTileColumns % kPanelColumns<float> == 0);

// Element (row, column) of op(matrix).
template <class T>
const T* corner(const Matrix<T>& matrix, int64_t row, int64_t column) {
  return matrix.transposed ? matrix.data + column * matrix.row_stride + row : matrix.data + row * matrix.row_stride + column;
}

// Packing buffers, on the stack: 0.5 MiB in f32, 1 MiB in f64.
template <class S>
struct Panels {
  alignas(64) S a[kPackedTileRows * kTileDepth];
  alignas(64) S b[kPackedTileColumns * kTileDepth];
};

// One register tile, of which [rows, columns] lie in c.
template <class S, bool kAdjacent>
void panel_product(int64_t rows, int64_t columns, int64_t depth, const S* a, int64_t a_stride, const S* b, S alpha, S* c, int64_t c_stride,
                   Into into) {
  if (rows == kPanelRows && columns == kPanelColumns<S>)
    return register_tile<S, kAdjacent>(depth, a, a_stride, b, alpha, c, c_stride, into);
  alignas(64) S whole[kPanelRows * kPanelColumns<S>];
  register_tile<S, kAdjacent>(depth, a, a_stride, b, alpha, whole, kPanelColumns<S>, Into::kOverwrite);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const S value = whole[i * kPanelColumns<S> + j];
      S& to = c[i * c_stride + j];
      to = into == Into::kAdd ? to + value : value;
    }
  }
}

// An `a` in the type of the sums is read where it lies if it is row-major, or near; rows that do not fill a panel, and every other `a`,
// are packed.
template <class S, class A, class B>
void tile_product(int64_t m, int64_t n, int64_t k, S alpha, Matrix<A> a, Matrix<B> b, S* c, int64_t c_stride, Into into) {
  Panels<S> panels;
  for (int64_t first = 0; first == 0 || first < k; first += kTileDepth) {
    const int64_t depth = std::min(kTileDepth, k - first);
    pack<kPanelColumns<S>>(corner(b, first, 0), b.row_stride, b.transposed, n, depth, panels.b);
    const bool is_near = depth * a.row_stride * static_cast<int64_t>(sizeof(S)) <= kNearBytes;
    const int64_t num_in_place = std::is_same_v<S, A> && (!a.transposed || is_near) ? m / kPanelRows * kPanelRows : 0;
    pack<kPanelRows>(corner(a, num_in_place, first), a.row_stride, !a.transposed, m - num_in_place, depth, panels.a);
    for (int64_t j = 0; j < n; j += kPanelColumns<S>) {
      const S* const right = panels.b + j * depth;
      const int64_t columns = std::min(kPanelColumns<S>, n - j);
      for (int64_t i = 0; i < m; i += kPanelRows) {
        const int64_t rows = std::min(kPanelRows, m - i);
        S* const to = c + i * c_stride + j;
        if constexpr (std::is_same_v<S, A>) {
          const S* const left = corner(a, i, first);
          if (i < num_in_place && a.transposed) {
            panel_product<S, true>(rows, columns, depth, left, a.row_stride, right, alpha, to, c_stride, into);
            continue;
          }
          if (i < num_in_place) {
            panel_product<S, false>(rows, columns, depth, left, a.row_stride, right, alpha, to, c_stride, into);
            continue;
          }
        }
        const S* const left = panels.a + (i - num_in_place) * depth;
        panel_product<S, true>(rows, columns, depth, left, kPanelRows, right, alpha, to, c_stride, into);
      }
    }
    into = Into::kAdd;
  }
}

// A few rows against the rows of b's stored matrix: dot products, which read b once.
template <class S, class A, class B>
void few_rows(int64_t m, int64_t n, int64_t k, S alpha, Matrix<A> a, Matrix<B> b, S* c, int64_t c_stride, Into into) {
  for (int64_t j = 0; j < n; ++j) {
    const B* const right = b.data + j * b.row_stride;
    for (int64_t i = 0; i < m; ++i) {
      const A* const left = a.data + i * a.row_stride;
      const S sum = static_cast<S>(lane_sum<S>(k, [&](int64_t l) { return static_cast<S>(left[l]) * static_cast<S>(right[l]); }));
      S& to = c[i * c_stride + j];
      to = into == Into::kAdd ? to + alpha * sum : alpha * sum;
    }
  }
}

#ifdef GLIM_OPENBLAS
// Our own tasks run side by side, each with one product: OpenBLAS's threads would make the bits depend on their number.
const bool has_one_thread = [] {
  openblas_set_num_threads(1);
  return true;
}();
void library_product(int64_t m, int64_t n, int64_t k, float alpha, Matrix<float> a, Matrix<float> b, float* c, int64_t c_stride,
                     Into into) {
  const auto order = [](bool transposed) { return transposed ? CblasTrans : CblasNoTrans; };
  cblas_sgemm(CblasRowMajor, order(a.transposed), order(b.transposed), static_cast<blasint>(m), static_cast<blasint>(n),
              static_cast<blasint>(k), alpha, a.data, static_cast<blasint>(a.row_stride), b.data, static_cast<blasint>(b.row_stride),
              into == Into::kAdd ? 1.0F : 0.0F, c, static_cast<blasint>(c_stride));
}
void library_product(int64_t m, int64_t n, int64_t k, double alpha, Matrix<double> a, Matrix<double> b, double* c, int64_t c_stride,
                     Into into) {
  const auto order = [](bool transposed) { return transposed ? CblasTrans : CblasNoTrans; };
  cblas_dgemm(CblasRowMajor, order(a.transposed), order(b.transposed), static_cast<blasint>(m), static_cast<blasint>(n),
              static_cast<blasint>(k), alpha, a.data, static_cast<blasint>(a.row_stride), b.data, static_cast<blasint>(b.row_stride),
              into == Into::kAdd ? 1.0 : 0.0, c, static_cast<blasint>(c_stride));
}
#endif

// One tile of the result in the type of the sums.
template <class S, class A, class B>
void multiply(int64_t m, int64_t n, int64_t k, S alpha, Matrix<A> a, Matrix<B> b, S* c, int64_t c_stride, Into into) {
  if (m <= kFewRows && b.transposed && !a.transposed) return few_rows(m, n, k, alpha, a, b, c, c_stride, into);
#ifdef GLIM_OPENBLAS
  if constexpr (std::is_same_v<A, S> && std::is_same_v<B, S>) {
    if (k > 0) return library_product(m, n, k, alpha, a, b, c, c_stride, into);
  }
#endif
  tile_product(m, n, k, alpha, a, b, c, c_stride, into);
}

// How many rows or columns each of the equal parts has: at most `most`, a multiple of `step`.
int64_t part(int64_t total, int64_t most, int64_t step) {
  const int64_t count = (total + most - 1) / most, each = (total + count - 1) / count;
  return (each + step - 1) / step * step;
}

}  // namespace

template <class T>
void block_product(int64_t m, int64_t n, int64_t k, T alpha, Matrix<T> a, Matrix<T> b, T* c, int64_t c_stride, Into into) {
  if (m > 0 && n > 0) tile_product(m, n, k, alpha, a, b, c, c_stride, into);
}

template <class A, class B, class C>
void gemm(KernelContext& context, int64_t m, int64_t n, int64_t k, double alpha, Matrix<A> a, Matrix<B> b, C* c, int64_t c_stride,
          Into into) {
  using S = Accumulate<B>;
  if (m == 0 || n == 0) return;
  const bool is_packed = a.transposed || !std::is_same_v<A, S>;
  const int64_t most_rows = is_packed ? kPackedTileRows : kTileRows;
  const int64_t tile_columns = part(n, is_packed ? kPackedTileColumns : kTileColumns, kPanelColumns<S>),
                tiles_n = (n + tile_columns - 1) / tile_columns;
  int64_t tile_rows = part(m, most_rows, kPanelRows), tiles_m = (m + tile_rows - 1) / tile_rows;
  if (tiles_m * tiles_n < kFewTasks) {
    tile_rows = part(m, most_rows / 2, kPanelRows);
    tiles_m = (m + tile_rows - 1) / tile_rows;
  }
  context.parallel_for(tiles_m * tiles_n, [&](int64_t tile) {
    const int64_t row = tile % tiles_m * tile_rows, column = tile / tiles_m * tile_columns;
    const int64_t rows = std::min(tile_rows, m - row), columns = std::min(tile_columns, n - column);
    const Matrix<A> left{corner(a, row, 0), a.row_stride, a.transposed};
    const Matrix<B> right{corner(b, 0, column), b.row_stride, b.transposed};
    C* const out = c + row * c_stride + column;
    if constexpr (std::is_same_v<S, C>) {
      multiply<S>(rows, columns, k, static_cast<S>(alpha), left, right, out, c_stride, into);
    } else {
      alignas(64) S sums[kPackedTileRows * kPackedTileColumns];  // a bf16 result is rounded once, at the end
      for (int64_t i = 0; into == Into::kAdd && i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) sums[i * columns + j] = static_cast<S>(out[i * c_stride + j]);
      }
      multiply<S>(rows, columns, k, static_cast<S>(alpha), left, right, sums, columns, into);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) out[i * c_stride + j] = C(sums[i * columns + j]);
      }
    }
  });
}

std::string product_library() {
#if defined(__AVX512F__)
  const std::string own = "glim panels, avx512";
#elif defined(__AVX__)
  const std::string own = "glim panels, avx";
#else
  const std::string own = "glim panels, 128 bit";
#endif
#ifdef GLIM_OPENBLAS
  return std::string(openblas_get_config()) + "; " + own;
#else
  return own;
#endif
}

template void block_product<float>(int64_t, int64_t, int64_t, float, Matrix<float>, Matrix<float>, float*, int64_t, Into);
template void block_product<double>(int64_t, int64_t, int64_t, double, Matrix<double>, Matrix<double>, double*, int64_t, Into);
#define GLIM_GEMM(A, B, C) \
  template void gemm<A, B, C>(KernelContext&, int64_t, int64_t, int64_t, double, Matrix<A>, Matrix<B>, C*, int64_t, Into)
GLIM_GEMM(double, double, double);
GLIM_GEMM(float, float, float);
GLIM_GEMM(Bf16, Bf16, Bf16);
GLIM_GEMM(Bf16, Bf16, float);
GLIM_GEMM(float, Bf16, Bf16);
GLIM_GEMM(float, Bf16, float);
#undef GLIM_GEMM

}  // namespace glim::cpu
