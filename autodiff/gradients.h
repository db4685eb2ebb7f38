#pragma once
// Reverse-mode differentiation on the tape: appends the backward pass to a graph.
#include <span>
#include <vector>

#include "engine/graph.h"

namespace glim {

// d(sum over k of <seed_k, value_k>) / d(wrt), appended to `graph`; one value per entry of `wrt`, invalid where the gradient
// is structurally zero. Each seed has its value's type. Fails, naming the op, when the way from a wrt to a value leads through
// an op that has no vjp.
struct Seeded {
  ValueId value, seed;
};
Result<std::vector<ValueId>> gradients(Graph& graph, std::span<const Seeded> seeds, std::span<const ValueId> wrt);

}  // namespace glim
