// out[r] = in[indices[r]]; zeros where the index is skip_index, and where it is out of range (an error at the end of the step).
#include "ops/device/table_rows.cuh"
#include "ops/gather_rows/gather_rows_attrs.h"

namespace glim::cuda {

void gather_rows(const KernelArgs& k) {
  gather_table_rows(k, k.in[0], k.in[1], k.attrs<ops::GatherRowsAttrs>().skip_index, k.out[0], "index");
}

}  // namespace glim::cuda
