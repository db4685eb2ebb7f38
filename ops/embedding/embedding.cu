// out[t] = weight[ids[t]]; zeros, and an error at the end of the step, where an id is no row of the weight.
#include <limits>

#include "ops/device/table_rows.cuh"

namespace glim::cuda {

void embedding(const KernelArgs& k) {
  constexpr int64_t kNoSkip = std::numeric_limits<int64_t>::min();  // no id: one of -1 is out of range and reported
  gather_table_rows(k, k.in[1], k.in[0], kNoSkip, k.out[0], "id");
}

}  // namespace glim::cuda
