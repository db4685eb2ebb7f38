// Copies the slice. Runs only where the plan could not make it a view.
#include "ops/slice/slice_attrs.h"

#include "ops/device/copy_view.h"
#include "ops/device/device.cuh"

namespace glim::cuda {

void slice(const KernelArgs& k) {
  const auto [axis, begin, length] = k.attrs<ops::SliceAttrs>();
  const Region at = axis == 0 ? Region{begin, 0} : Region{0, begin};
  copy_view(part_of(k.in[0], at, k.out[0].type.shape), k.out[0], k.context.stream());
}

}  // namespace glim::cuda
