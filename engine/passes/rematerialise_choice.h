#pragma once
// Which forward nodes run again in the backward pass, and which values are kept for it instead.
#include <vector>

#include "engine/passes/rematerialise_problem.h"

namespace glim {

// What a policy costs and saves, against keeping everything.
struct RematerialisationReport {
  double saved_bytes = 0;      // primals kept for the backward pass (views count as their buffer, leaves and outputs as nothing)
  double recompute_flops = 0;  // of the nodes that run again, each counted once
  double recompute_seconds = 0;
  size_t num_saved = 0, num_recomputed = 0;  // buffers, nodes
  bool within_budget = true;                 // false: kAuto has found no choice that fits, and this is the one with the fewest bytes
};

struct RematerialisationChoice {
  std::vector<bool> recomputed;  // by node
  std::vector<bool> saved;       // by value: kept for the backward pass even when its producer runs again
  RematerialisationReport report;
};

// How far kAuto goes. The defaults keep a graph of 2,000 candidates well under 0.2 s.
struct RematerialisationSearch {
  uint32_t exact_items = 16;   // up to so many candidates every choice is tried
  uint32_t window_items = 10;  // beyond, every choice of so many neighbours, the others held
  uint32_t max_rounds = 4;
};

// kNone, kSelective: the fewest bytes (then the least time) without running an expensive node again. kFull: inside instances of
// a stack ("decoder.3") nothing is kept but what other instances or the outside read. kAuto: the least time such that the saved
// bytes fit PassContext::saved_bytes_budget; exact for few candidates, else a minimum cut for a price per byte, and local search.
// When no choice fits, the one with the fewest bytes. kSelective and kAuto never run again what goes from one instance of a stack to the
// next.
[[nodiscard]] RematerialisationChoice choose_rematerialisation(const Graph& graph, const PassContext& context,
                                                               const RematerialisationSearch& search = {});

}  // namespace glim
