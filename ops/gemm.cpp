// Packing buffers come from the stack: a tile of at most kTileRows x kTileColumns with a depth of kTileDepth keeps each of Eigen's
// two under 1 MiB in f64, so this limit is never passed.
#define EIGEN_STACK_ALLOCATION_LIMIT (1 << 20)
#define EIGEN_DONT_PARALLELIZE
#include "ops/gemm.h"

#include <fmt/format.h>

#include <Eigen/Core>
#include <algorithm>
#include <type_traits>

#include "ops/cpu.h"
#include "ops/vector_math.h"

#ifdef GLIM_OPENBLAS
#include <cblas.h>
#endif

namespace glim::cpu {
namespace {

constexpr int64_t kTileRows = 128, kTileColumns = 256, kTileDepth = 512;
constexpr int64_t kFewRows = 3;  // no more rows than this do not pay for packing b

template <class T, int kOrder>
using Dynamic = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, kOrder>;
template <class T, int kOrder>
using ConstMap = Eigen::Map<const Dynamic<T, kOrder>, 0, Eigen::OuterStride<>>;
template <class T>
using Map = Eigen::Map<Dynamic<T, Eigen::RowMajor>, 0, Eigen::OuterStride<>>;

// A transposed row-major matrix is a column-major one.
template <class T, int kOrderA, int kOrderB>
void product(int64_t m, int64_t n, int64_t k, T alpha, const Matrix<T>& a, const Matrix<T>& b, T* c, int64_t c_stride, Into into) {
  const ConstMap<T, kOrderA> left(a.data, m, k, Eigen::OuterStride<>(a.row_stride));
  const ConstMap<T, kOrderB> right(b.data, k, n, Eigen::OuterStride<>(b.row_stride));
  Map<T> result(c, m, n, Eigen::OuterStride<>(c_stride));
  if (into == Into::kOverwrite) result.setZero();
  // What `result += alpha * left * right` ends in; written so, a product with one row or column would copy alpha * left to the heap.
  Eigen::internal::generic_product_impl<ConstMap<T, kOrderA>, ConstMap<T, kOrderB>, Eigen::DenseShape, Eigen::DenseShape,
                                        Eigen::GemmProduct>::scaleAndAddTo(result, left, right, alpha);
}

#ifdef GLIM_OPENBLAS
// Our own tasks run side by side, each with one product: OpenBLAS's threads would make the bits depend on their number.
const bool has_one_thread = [] {
  openblas_set_num_threads(1);
  return true;
}();
template <class T>
void blas_product(int64_t m, int64_t n, int64_t k, T alpha, const Matrix<T>& a, const Matrix<T>& b, T* c, int64_t c_stride, Into into) {
  const auto order = [](bool transposed) { return transposed ? CblasTrans : CblasNoTrans; };
  const auto size = [](int64_t value) { return static_cast<blasint>(value); };
  const T beta = into == Into::kAdd ? T(1) : T(0);
  if constexpr (std::is_same_v<T, float>)
    cblas_sgemm(CblasRowMajor, order(a.transposed), order(b.transposed), size(m), size(n), size(k), alpha, a.data, size(a.row_stride),
                b.data, size(b.row_stride), beta, c, size(c_stride));
  else
    cblas_dgemm(CblasRowMajor, order(a.transposed), order(b.transposed), size(m), size(n), size(k), alpha, a.data, size(a.row_stride),
                b.data, size(b.row_stride), beta, c, size(c_stride));
}
#endif

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

// Rows and columns of the stored matrix that op(matrix)[row.., column..] is.
template <class T>
const T* corner(const Matrix<T>& matrix, int64_t row, int64_t column) {
  return matrix.transposed ? matrix.data + column * matrix.row_stride + row : matrix.data + row * matrix.row_stride + column;
}

// The block op(from)[row .. row + rows, column .. column + columns] in S: in place, or widened into `scratch`.
template <class S, class T>
Matrix<S> widened(const Matrix<T>& from, int64_t row, int64_t column, int64_t rows, int64_t columns, S* scratch) {
  const T* first = corner(from, row, column);
  if constexpr (std::is_same_v<S, T>) {
    return {first, from.row_stride, from.transposed};
  } else {
    const int64_t stored_rows = from.transposed ? columns : rows, stored_columns = from.transposed ? rows : columns;
    for (int64_t i = 0; i < stored_rows; ++i) {
      for (int64_t j = 0; j < stored_columns; ++j) scratch[i * stored_columns + j] = static_cast<S>(first[i * from.row_stride + j]);
    }
    return {scratch, stored_columns, from.transposed};
  }
}

template <class S, class T, int64_t kSize>
struct Scratch {
  alignas(64) S values[std::is_same_v<S, T> ? 1 : kSize];
};

}  // namespace

template <class T>
void block_product(int64_t m, int64_t n, int64_t k, T alpha, Matrix<T> a, Matrix<T> b, T* c, int64_t c_stride, Into into) {
  if (m == 0 || n == 0) return;
  // Deep products are cut so that no packing buffer depends on the machine's cache sizes.
  for (int64_t depth = 0; depth == 0 || depth < k; depth += kTileDepth) {
    const int64_t length = std::min(kTileDepth, k - depth);
    const Matrix<T> left{corner(a, 0, depth), a.row_stride, a.transposed}, right{corner(b, depth, 0), b.row_stride, b.transposed};
    const Into now = depth == 0 ? into : Into::kAdd;
    if (a.transposed && b.transposed)
      product<T, Eigen::ColMajor, Eigen::ColMajor>(m, n, length, alpha, left, right, c, c_stride, now);
    else if (a.transposed)
      product<T, Eigen::ColMajor, Eigen::RowMajor>(m, n, length, alpha, left, right, c, c_stride, now);
    else if (b.transposed)
      product<T, Eigen::RowMajor, Eigen::ColMajor>(m, n, length, alpha, left, right, c, c_stride, now);
    else
      product<T, Eigen::RowMajor, Eigen::RowMajor>(m, n, length, alpha, left, right, c, c_stride, now);
  }
}

namespace {

template <class T>
void tile_product(int64_t m, int64_t n, int64_t k, T alpha, Matrix<T> a, Matrix<T> b, T* c, int64_t c_stride, Into into) {
#ifdef GLIM_OPENBLAS
  if (k > 0) return blas_product(m, n, k, alpha, a, b, c, c_stride, into);
#endif
  block_product(m, n, k, alpha, a, b, c, c_stride, into);
}

}  // namespace

template <class A, class B, class C>
void gemm(KernelContext& context, int64_t m, int64_t n, int64_t k, double alpha, Matrix<A> a, Matrix<B> b, C* c, int64_t c_stride,
          Into into) {
  using S = Accumulate<B>;
  if (m == 0 || n == 0) return;
  const int64_t tiles_m = (m + kTileRows - 1) / kTileRows, tiles_n = (n + kTileColumns - 1) / kTileColumns;
  context.parallel_for(tiles_m * tiles_n, [&](int64_t tile) {
    const int64_t row = tile % tiles_m * kTileRows, column = tile / tiles_m * kTileColumns;
    const int64_t rows = std::min(kTileRows, m - row), columns = std::min(kTileColumns, n - column);
    [[maybe_unused]] Scratch<S, A, kTileRows * kTileDepth> left;
    [[maybe_unused]] Scratch<S, B, kTileColumns * kTileDepth> right;
    [[maybe_unused]] Scratch<S, C, kTileRows * kTileColumns> sum;
    C* const out = c + row * c_stride + column;
    S* target = nullptr;
    int64_t target_stride = 0;
    if constexpr (std::is_same_v<S, C>) {
      target = out;
      target_stride = c_stride;
    } else {
      target = sum.values;
      target_stride = columns;
      for (int64_t i = 0; into == Into::kAdd && i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) target[i * columns + j] = static_cast<S>(out[i * c_stride + j]);
      }
    }
    if (m <= kFewRows && b.transposed && !a.transposed) {
      few_rows<S>(rows, columns, k, static_cast<S>(alpha), Matrix<A>{corner(a, row, 0), a.row_stride},
                  Matrix<B>{corner(b, 0, column), b.row_stride}, target, target_stride, into);
    } else {
      for (int64_t depth = 0; depth == 0 || depth < k; depth += kTileDepth) {
        const int64_t length = std::min(kTileDepth, k - depth);
        const Matrix<S> l = widened<S>(a, row, depth, rows, length, left.values),
                        r = widened<S>(b, depth, column, length, columns, right.values);
        tile_product<S>(rows, columns, length, static_cast<S>(alpha), l, r, target, target_stride, depth == 0 ? into : Into::kAdd);
      }
    }
    if constexpr (!std::is_same_v<S, C>) {
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) out[i * c_stride + j] = C(target[i * columns + j]);
      }
    }
  });
}

std::string product_library() {
#if defined(__AVX512F__)
  const std::string instructions = "avx512";
#elif defined(__AVX2__)
  const std::string instructions = "avx2";
#else
  const std::string instructions = "baseline instructions";
#endif
  const std::string eigen = fmt::format("eigen {}.{}.{}, {}", EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION, instructions);
#ifdef GLIM_OPENBLAS
  return fmt::format("{}; {}", openblas_get_config(), eigen);
#else
  return eigen;
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
