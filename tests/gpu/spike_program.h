#pragma once
// The program of the GPU spike: linear -> rms_norm -> linear_cross_entropy, its backward pass, and plain gradient descent on the
// parameters.
#include <map>
#include <string>
#include <vector>

#include "runtime/executable.h"

namespace glim::testing {

struct SpikeSizes {
  int64_t rows, depth, width, vocabulary, chunk_rows;  // T, K, N, V
  double learning_rate;
};
struct Spike {
  Program program;
  LeafLayout layout;
  double flops = 0;  // of one step
};
// Inputs x [T, K], labels i32[T], seed [1]; states w1 [N, K], g [N], w2 [V, N]; outputs loss, token_accuracy, num_correct, num_valid,
// row_loss and the gradients. `joins_head`: loss and gradients of the head come from one node, otherwise from two.
Spike make_spike(DType real, const SpikeSizes& sizes, bool joins_head = true);

// Compiles a graph as it is.
Spike make_program(std::string name, Graph graph);

// What the leaves hold at the start, by name: the same for every dtype up to rounding; labels are ignored in every seventh row.
using Values = std::map<std::string, std::vector<double>>;
Values initial_values(const SpikeSizes& sizes);

}  // namespace glim::testing
