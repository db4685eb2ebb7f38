// out = in with zeros before and after it: three parts, each written once.
#include "ops/pad/pad_attrs.h"

#include "ops/device/copy_view.h"
#include "ops/device/device.cuh"

namespace glim::cuda {

void pad(const KernelArgs& k) {
  const auto [axis, begin, length] = k.attrs<ops::PadAttrs>();
  const Shape& whole = k.out[0].type.shape;
  const int64_t size = k.in[0].type.shape[static_cast<int>(axis)];
  const auto part = [&](int64_t from, int64_t extent) {
    Shape shape = whole;
    shape.dims[static_cast<size_t>(axis)] = extent;
    return part_of(k.out[0], axis == 0 ? Region{from, 0} : Region{0, from}, shape);
  };
  clear_view(part(0, begin), k.context.stream());
  copy_view(k.in[0], part(begin, size), k.context.stream());
  clear_view(part(begin + size, length - begin - size), k.context.stream());
}

}  // namespace glim::cuda
