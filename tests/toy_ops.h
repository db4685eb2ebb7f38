#pragma once
// A small op table for tests of the engine: one op for each thing that the engine treats in a way of its own. What the ops
// compute is said by `interpret`, in integers modulo 2^64, so that a rewrite either keeps a value exactly or visibly does not.
#include <cstdint>
#include <random>
#include <vector>

#include "engine/graph.h"

namespace glim::toy {

// add, mul, scale{factor, offset, negate, mode}, sum_difference -> 2 outputs, choose(in, other?, last), concat{axis},
// split{axis, size0..size7}, linear(in, weight, bias?){wide}, accumulate(buffer, in) kMust, all_reduce (collective),
// front(x), back(x, front, ct); fusions: scale + add -> scale_add (forward); front + back -> front_back (joint);
// drift, whose output has the dtype that `drift_dtype` says when it is asked.
[[nodiscard]] const OpTable& table();
extern DType drift_dtype;

// Values of all of a graph's values, row by row. Leaves are filled from their name.
[[nodiscard]] std::vector<std::vector<uint64_t>> interpret(const Graph& graph);

// A graph of about `num_nodes` nodes that uses the whole table (but drift), with outputs and updates.
[[nodiscard]] Graph random_graph(std::mt19937_64& random, size_t num_nodes);

}  // namespace glim::toy
