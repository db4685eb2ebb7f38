#pragma once
// Minimum cut of a directed network (Dinic's algorithm). Capacities are integers, so it ends and is exact.
#include <cstdint>
#include <utility>
#include <vector>

namespace glim {

class MinCut {
 public:
  // Together the capacities of finite arcs must stay below this.
  static constexpr int64_t kInfinite = int64_t{1} << 61;

  explicit MinCut(uint32_t num_vertices) : num_vertices_(num_vertices) {}
  void add_arc(uint32_t from, uint32_t to, int64_t capacity);
  // Of all minimum cuts the one with the fewest vertices on the sink's side: true = on the sink's side. Every way from source
  // to sink must have a finite arc. May be called once.
  std::vector<bool> solve(uint32_t source, uint32_t sink);

 private:
  void sort_arcs();
  bool find_levels(uint32_t source, uint32_t sink);
  void saturate(uint32_t source, uint32_t sink);

  uint32_t num_vertices_;
  std::vector<uint32_t> from_, to_;                  // arc 2k is a given one, arc 2k + 1 its reverse
  std::vector<int64_t> left_;                        // residual capacity
  std::vector<uint32_t> first_, sorted_, next_arc_;  // arcs that leave vertex v: sorted_[first_[v]] .. sorted_[first_[v + 1]]
  std::vector<uint32_t> level_;                      // distance from the source; kUnreached
};

}  // namespace glim
