#pragma once
#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "ops/define.h"
#include "ops/split/split_attrs.h"

namespace glim::ops {

// Views of consecutive parts of `in` along axis 0 or 1. The inverse of concat.
inline std::vector<ValueId> split(Graph& g, ValueId in, int64_t axis, std::span<const int64_t> sizes) {
  SplitAttrs attrs{axis, {}};
  std::copy(sizes.begin(), sizes.end(), attrs.sizes.begin());
  const NodeId node = emit(g, "split", {in}, attrs);
  std::vector<ValueId> parts;
  for (uint32_t k = 0; k < sizes.size(); ++k) parts.push_back(g.output(node, k));
  return parts;
}

}  // namespace glim::ops

namespace glim::cuda {
void split(const KernelArgs& k);
}  // namespace glim::cuda
