#include "engine/passes/order.h"

#include "engine/schedule.h"

namespace glim {

Result<Rewritten> order(const Graph& graph, const PassContext&) {
  Rewriter rewriter(graph);
  for (const Leaf& leaf : graph.leaves()) rewriter.copy(graph.producer(leaf.value));
  for (const ScheduleStep& step : make_schedule(graph).steps) rewriter.copy(step.node);
  return std::move(rewriter).finish();
}

}  // namespace glim
