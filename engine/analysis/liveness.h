#pragma once
#include <vector>

#include "engine/schedule.h"

namespace glim {

// When a value's bytes matter, in schedule positions: from the step that writes it to the last step that reads it.
struct Lifetime {
  static constexpr int64_t kBefore = -1;               // leaves: before the first step
  static constexpr int64_t kAfter = int64_t{1} << 40;  // graph outputs, next values and kept leaves: after the last step
  int64_t begin = kBefore, end = kBefore;
};

// A value read on the communication stream lives until the compute stream has waited for that read.
[[nodiscard]] std::vector<Lifetime> find_lifetimes(const Graph& graph, const Schedule& schedule);

}  // namespace glim
