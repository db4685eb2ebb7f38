#pragma once
// What rematerialisation decides about, as plain arrays: which forward nodes could run again, and which buffers the backward
// pass needs. Views are gone: a value that is a view stands for the buffer that it lies in.
#include <span>
#include <vector>

#include "engine/analysis/backward_region.h"
#include "engine/graph.h"
#include "engine/pass.h"

namespace glim {

struct RematerialisationProblem {
  // A forward node, in tape order, that the backward pass needs a result of, directly or to run other items again.
  struct Item {
    NodeId node;
    double seconds = 0, flops = 0;
    bool pinned = false;                                                            // never runs again
    bool expensive = false;                                                         // bound by arithmetic, not by memory
    uint32_t first_operand = 0, end_operand = 0, first_output = 0, end_output = 0;  // in `operands` and `outputs`
  };
  struct Buffer {
    ValueId value;
    double bytes = 0;  // 0 for what outlives the program anyway
    uint32_t item = 0;
    bool needed = false;  // read by the backward pass as it stands
  };
  std::vector<Item> items;
  std::vector<Buffer> buffers;
  std::vector<uint32_t> operands;  // pooled buffer numbers; leaves are left out, an operand is listed once per item
  std::vector<uint32_t> outputs;   // pooled buffer numbers, without those that nobody needs
  [[nodiscard]] std::span<const uint32_t> operands_of(const Item& i) const {
    return {operands.data() + i.first_operand, operands.data() + i.end_operand};
  }
  [[nodiscard]] std::span<const uint32_t> outputs_of(const Item& i) const {
    return {outputs.data() + i.first_output, outputs.data() + i.end_output};
  }
};

// For every value the value in whose buffer it lies: itself, or for outputs of view nodes (every output is kView) that of the
// operand.
[[nodiscard]] std::vector<ValueId> find_buffers(const Graph& graph);

// Pinned are collectives, nodes with a kMust output, nodes that read a buffer that some node accumulates into (it is gone by
// then), nodes that depend on a state that the program updates, nodes whose buffers are kept for other reasons anyway, and the
// producers of what the first node of the backward pass reads: the forward pass has only just ended there. (That node may be the
// head joined with its vjp. The forward pass then serves nothing else, and running it again for that would only move it.)
// `never_again` (by node) pins more.
[[nodiscard]] RematerialisationProblem make_rematerialisation_problem(const Graph& graph, const BackwardRegion& backward,
                                                                      std::span<const ValueId> buffer_of, const CostModel& cost_model,
                                                                      const std::vector<bool>& never_again);

}  // namespace glim
