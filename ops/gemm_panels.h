#pragma once
// How a product's operands lie while it runs: panels whose width is that of the register tile, so that the inner loop reads memory in
// order. Vectors are GCC's and clang's vector extension: one source for every instruction set.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/gemm.h"

namespace glim::cpu {

// A register tile has kPanelRows rows of two vectors: as many sums as there are registers, less those of the operands.
#if defined(__AVX512F__)
inline constexpr int64_t kVectorBytes = 64, kPanelRows = 12;
#elif defined(__AVX__)
inline constexpr int64_t kVectorBytes = 32, kPanelRows = 6;
#else
inline constexpr int64_t kVectorBytes = 16, kPanelRows = 6;
#endif
template <class S>
inline constexpr int64_t kLength = kVectorBytes / static_cast<int64_t>(sizeof(S));
template <class S>
inline constexpr int64_t kPanelColumns = 2 * kLength<S>;

template <class S>
struct VectorOf {
  typedef S Type __attribute__((vector_size(kVectorBytes)));
};
template <class S>
using Vector = typename VectorOf<S>::Type;

inline constexpr int64_t kPackDepth = 32;  // packed at a time: the lines and pages that it touches stay in the nearest caches

// to[l * to_stride + j] = from[j * from_stride + l] for j, l < 8.
[[gnu::always_inline]] inline void transpose_8x8(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  typedef float Eight __attribute__((vector_size(32)));
  Eight a[8], b[8];
  for (int j = 0; j < 8; ++j) std::memcpy(&a[j], from + j * from_stride, sizeof a[j]);
  for (int j = 0; j < 8; j += 2) {
    b[j] = __builtin_shufflevector(a[j], a[j + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    b[j + 1] = __builtin_shufflevector(a[j], a[j + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int j = 0; j < 8; j += 4) {
    for (int half = 0; half < 2; ++half) {
      a[j + 2 * half] = __builtin_shufflevector(b[j + half], b[j + half + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      a[j + 2 * half + 1] = __builtin_shufflevector(b[j + half], b[j + half + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int l = 0; l < 4; ++l) {
    b[l] = __builtin_shufflevector(a[l], a[l + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    b[l + 4] = __builtin_shufflevector(a[l], a[l + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int l = 0; l < 8; ++l) std::memcpy(to + l * to_stride, &b[l], sizeof b[l]);
}

// Packs `count` vectors of `depth` elements into panels of kWidth: element l of vector j goes to to[j / kWidth * kWidth * depth + l *
// kWidth
// + j % kWidth]. The last panel is filled up with zeros. `along` says that element l of vector j is from[j * stride + l], not from[l *
// stride + j].
template <int64_t kWidth, class S, class T>
void pack(const T* from, int64_t stride, bool along, int64_t count, int64_t depth, S* to) {
  for (int64_t first = 0; first < depth; first += kPackDepth) {
    const int64_t last = std::min(depth, first + kPackDepth);
    for (int64_t j = 0; j < count; j += kWidth) {
      S* const panel = to + j * depth;
      const int64_t width = std::min(kWidth, count - j);
      if (width < kWidth) {
        for (int64_t l = first; l < last; ++l) {
          for (int64_t i = 0; i < kWidth; ++i)
            panel[l * kWidth + i] = i < width ? static_cast<S>(along ? from[(j + i) * stride + l] : from[l * stride + j + i]) : S(0);
        }
      } else if (!along) {
        for (int64_t l = first; l < last; ++l) {
          for (int64_t i = 0; i < kWidth; ++i) panel[l * kWidth + i] = static_cast<S>(from[l * stride + j + i]);
        }
      } else {
        int64_t l = first;
        if constexpr (std::is_same_v<T, float> && std::is_same_v<S, float> && kWidth % 8 == 0) {
          for (; l + 8 <= last; l += 8) {
            for (int64_t i = 0; i < kWidth; i += 8) transpose_8x8(from + (j + i) * stride + l, stride, panel + l * kWidth + i, kWidth);
          }
        }
        for (; l < last; ++l) {
          for (int64_t i = 0; i < kWidth; ++i) panel[l * kWidth + i] = static_cast<S>(from[(j + i) * stride + l]);
        }
      }
    }
  }
}

// c [kPanelRows, kPanelColumns] = alpha * a b, added to what c holds for kAdd; b is a packed panel. Element (i, l) of a is a[l * a_stride
// + i] where its rows are adjacent (a packed panel, with a stride of kPanelRows, or a transposed matrix), a[i * a_stride + l] otherwise.
// Every element is one sum in the order of l, wherever it lies.
template <class S, bool kAdjacent>
void register_tile(int64_t depth, const S* a, int64_t a_stride, const S* b, S alpha, S* c, int64_t c_stride, Into into) {
  Vector<S> sums[kPanelRows][2] = {};
  const S* rows[kPanelRows];
  for (int64_t i = 0; i < kPanelRows; ++i) rows[i] = a + i * (kAdjacent ? 1 : a_stride);
#pragma GCC unroll 4
  for (int64_t l = 0; l < depth; ++l) {
    Vector<S> left, right;
    std::memcpy(&left, b + l * kPanelColumns<S>, sizeof left);
    std::memcpy(&right, b + l * kPanelColumns<S> + kLength<S>, sizeof right);
#pragma GCC unroll 12
    for (int64_t i = 0; i < kPanelRows; ++i) {
      const S x = kAdjacent ? a[l * a_stride + i] : rows[i][l];
      sums[i][0] += x * left;
      sums[i][1] += x * right;
    }
  }
#pragma GCC unroll 12
  for (int64_t i = 0; i < kPanelRows; ++i) {
    for (int64_t half = 0; half < 2; ++half) {
      S* const to = c + i * c_stride + half * kLength<S>;
      Vector<S> value = sums[i][half] * alpha;
      if (into == Into::kAdd) {
        Vector<S> old;
        std::memcpy(&old, to, sizeof old);
        value += old;
      }
      std::memcpy(to, &value, sizeof value);
    }
  }
}

}  // namespace glim::cpu
