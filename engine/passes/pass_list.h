#pragma once
#include <span>

#include "engine/pass.h"

namespace glim {

// Before autodiff: what changes which values the backward pass needs.
[[nodiscard]] std::span<const Pass> forward_passes();
// After autodiff and the optimizer were appended: the backward pass is just more graph.
[[nodiscard]] std::span<const Pass> joint_passes();

// Fails, with the closest name, when `options` disables or stops after a pass that is in neither list.
[[nodiscard]] Status check_pass_names(const PassOptions& options);

}  // namespace glim
