#pragma once
// Which values share a buffer, and where in it each one lies.
//
// A buffer is a rectangle of rows and columns. A value of rank 2 is a sub-rectangle of it, a value of rank 1 is a column of
// width 1, any other rank is a column too (flat). Values come to share a buffer because one is a view of the other, because
// one is assembled from others, because a kernel works in place, or because one is the next value of a state.
#include <string>
#include <vector>

#include "engine/analysis/liveness.h"

namespace glim {

struct Placement {
  uint32_t buffer = 0;
  int64_t row = 0, column = 0;
};

struct Buffer {
  int64_t rows = 0, columns = 0;  // row stride = columns
  DType dtype = DType::kF32;
  Lifetime lifetime;            // of all its values together
  std::vector<ValueId> leaves;  // the leaves that tile it, by row; empty for a buffer of computed values
  [[nodiscard]] size_t bytes() const { return static_cast<size_t>(rows * columns) * size_of(dtype); }
};

struct Placements {
  std::vector<Placement> values;    // by value
  std::vector<Buffer> buffers;      // those of no value have rows = 0
  std::vector<bool> node_runs;      // by node: whether its kernel has anything to do
  std::vector<StateUpdate> copies;  // updates whose next value does not lie in its state: copied after the last step
  struct Before {
    NodeId node;
    uint16_t output, operand;
  };
  std::vector<Before> copies_before;  // operand -> output, for outputs that must be their operand and could not be

  [[nodiscard]] size_t offset_bytes(ValueId v) const {
    const Placement& at = values[v.index];
    const Buffer& buffer = buffers[at.buffer];
    return static_cast<size_t>(at.row * buffer.columns + at.column) * size_of(buffer.dtype);
  }
};

// Byte positions of leaves in their arenas that sharing has to respect; null: leaves may be arranged as the graph likes best.
class LeafLayout;
[[nodiscard]] Placements place_values(const Graph& graph, const Schedule& schedule, const LeafLayout* layout);

}  // namespace glim
