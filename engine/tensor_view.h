#pragma once
// What a kernel sees of a tensor at run time.
#include "engine/type.h"

namespace glim {

// `data` is null for an operand that the node does not have. Rank 2 may have a leading dimension larger than its width:
// element (i, j) is at data[i * row_stride + j] (in elements). Every other rank is contiguous.
struct TensorView {
  void* data = nullptr;
  TensorType type;
  int64_t row_stride = 0;

  [[nodiscard]] bool present() const { return data != nullptr; }
  [[nodiscard]] bool contiguous() const { return type.shape.rank != 2 || row_stride == type.shape[1] || type.shape[0] <= 1; }
  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data);
  }
  template <class T>
  [[nodiscard]] T* row(int64_t i) const {
    return static_cast<T*>(data) + i * row_stride;
  }
};

// A view of a whole contiguous buffer.
inline TensorView contiguous_view(void* data, const TensorType& type) { return {data, type, type.shape.last()}; }

}  // namespace glim
