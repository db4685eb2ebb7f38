#pragma once
#include "engine/op.h"

namespace glim {

// A table of every op in op_list.def. An embedder copies it and adds ops of its own before compiling a model.
[[nodiscard]] const OpTable& builtin_ops();

}  // namespace glim
