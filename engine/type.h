#pragma once
// Static tensor types: dtype and shape (rank 0 to 4, row-major, last axis contiguous).
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "engine/dtype.h"
#include "engine/error.h"

namespace glim {

inline constexpr int kMaxRank = 4;
inline constexpr int64_t kMaxDim = (int64_t{1} << 31) - 1;

struct Shape {
  std::array<int64_t, kMaxRank> dims{};
  uint8_t rank = 0;

  Shape() = default;
  Shape(std::initializer_list<int64_t> list);
  int64_t operator[](int axis) const { return dims[static_cast<size_t>(axis)]; }
  [[nodiscard]] int64_t last() const { return rank == 0 ? 1 : dims[rank - 1U]; }
  [[nodiscard]] int64_t numel() const;
  // Rows of a tensor seen as [rows, last].
  [[nodiscard]] int64_t rows() const { return last() == 0 ? 0 : numel() / last(); }
  friend bool operator==(const Shape&, const Shape&) = default;
};

// Checks 0 <= dim <= 2^31-1, rank <= 4 and that the number of bytes fits in 2^62.
[[nodiscard]] Result<Shape> make_shape(std::span<const int64_t> dims);

struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;
  [[nodiscard]] size_t bytes() const { return static_cast<size_t>(shape.numel()) * size_of(dtype); }
  friend bool operator==(const TensorType&, const TensorType&) = default;
};

[[nodiscard]] std::string to_string(const Shape& shape);      // "[512,64]"
[[nodiscard]] std::string to_string(const TensorType& type);  // "f32[512,64]"

}  // namespace glim
