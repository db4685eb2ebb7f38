#include "engine/type.h"

#include <fmt/format.h>

#include <algorithm>

namespace glim {

Shape::Shape(std::initializer_list<int64_t> list) : rank(static_cast<uint8_t>(list.size())) {
  GLIM_CHECK(list.size() <= kMaxRank, "rank over 4");
  std::copy(list.begin(), list.end(), dims.begin());
}

int64_t Shape::numel() const {
  int64_t count = 1;
  for (int axis = 0; axis < rank; ++axis) count *= (*this)[axis];
  return count;
}

Result<Shape> make_shape(std::span<const int64_t> dims) {
  if (dims.size() > kMaxRank) return invalid_argument(fmt::format("rank {} is over the limit of {}", dims.size(), kMaxRank));
  Shape shape;
  int64_t count = 1;
  for (const int64_t dim : dims) {
    if (dim < 0) return invalid_argument(fmt::format("dimension {} is negative", dim));
    if (dim > kMaxDim) return invalid_argument(fmt::format("dimension {} is over the limit of {}", dim, kMaxDim));
    if (__builtin_mul_overflow(count, dim, &count) || count > (int64_t{1} << 59)) {
      return invalid_argument("the shape has more elements than any memory can hold");
    }
    shape.dims[shape.rank++] = dim;
  }
  return shape;
}

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape.dims.begin(), shape.dims.begin() + shape.rank, ","));
}

std::string to_string(const TensorType& type) { return std::string(to_string(type.dtype)) + to_string(type.shape); }

}  // namespace glim
