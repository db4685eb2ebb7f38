#include "engine/schedule.h"

#include <algorithm>
#include <queue>

#include "engine/analysis/aliases.h"
#include "engine/analysis/consumers.h"

namespace glim {
namespace {

// The node whose kernel writes the bytes of `v`: views are followed to what they look at.
NodeId writer_of(const Graph& graph, const std::vector<AliasFact>& aliases, ValueId v) {
  for (;;) {
    const NodeId n = graph.producer(v);
    if (aliases[v.index].kind != AliasKind::kView) return n;
    v = graph.inputs(n)[aliases[v.index].operand];
  }
}

// Readers of each state that must come before the writer of its next value, as edges reader -> writer. They are wishes: a
// reader that needs the new value cannot come first.
std::vector<std::vector<NodeId>> writers_after_readers(const Graph& graph) {
  std::vector<std::vector<NodeId>> later(graph.num_nodes());
  const Readers readers = find_readers(graph);
  const std::vector<AliasFact> aliases = find_aliases(graph);
  for (const StateUpdate& update : graph.updates()) {
    if (graph.is_leaf(update.next)) continue;
    const NodeId writer = writer_of(graph, aliases, update.next);
    if (graph.is_leaf(writer)) continue;
    std::vector<ValueId> views{update.state};  // the state itself and what looks at it
    for (size_t k = 0; k < views.size(); ++k) {
      for (const NodeId reader : readers[views[k]]) {
        const bool is_view = aliases[graph.output(reader).index].kind == AliasKind::kView;
        for (uint16_t out = 0; is_view && out < graph.node(reader).num_outputs; ++out) views.push_back(graph.output(reader, out));
        if (!is_view && reader != writer && reader > writer) later[reader.index].push_back(writer);
      }
    }
  }
  return later;
}

// When a node would like to run: its place on the tape, except for nodes that serve only states and outputs (the accumulation of a
// weight gradient, say). They run right after their last operand: nobody waits for them, but their operands wait in memory.
std::vector<uint32_t> choose_places(const Graph& graph) {
  const std::vector<AliasFact> aliases = find_aliases(graph);
  const Readers readers = find_readers(graph);
  const auto num_nodes = static_cast<uint32_t>(graph.num_nodes());
  std::vector<bool> is_sink(num_nodes, false);
  for (uint32_t n = num_nodes; n-- > 0;) {
    if (graph.is_leaf(NodeId{n})) continue;
    bool only_sinks_read = true, is_read = false;
    for (uint32_t k = 0; k < graph.node({n}).num_outputs; ++k) {
      for (const NodeId reader : readers[graph.output({n}, k)]) {
        is_read = true;
        only_sinks_read = only_sinks_read && is_sink[reader.index];
      }
    }
    is_sink[n] = !is_read || (only_sinks_read && aliases[graph.output({n}).index].kind == AliasKind::kView);
  }
  std::vector<uint32_t> places(num_nodes, 0);
  for (uint32_t n = 0; n < num_nodes; ++n) {
    if (graph.is_leaf(NodeId{n})) continue;
    if (!is_sink[n]) {
      places[n] = n;
      continue;
    }
    for (const ValueId v : graph.inputs({n})) {
      if (v.valid() && !graph.is_leaf(v)) places[n] = std::max(places[n], places[graph.producer(v).index]);
    }
  }
  return places;
}

// Kahn's algorithm that always takes the ready node with the earliest place. When only wishes are left unmet, the earliest
// waiting node goes first.
std::vector<NodeId> order_nodes(const Graph& graph) {
  const auto num_nodes = static_cast<uint32_t>(graph.num_nodes());
  const std::vector<std::vector<NodeId>> later = writers_after_readers(graph);
  std::vector<uint32_t> hard(num_nodes, 0), soft(num_nodes, 0);
  std::vector<std::vector<NodeId>> readers(num_nodes);
  for (uint32_t n = 0; n < num_nodes; ++n) {
    for (const NodeId writer : later[n]) ++soft[writer.index];
    std::vector<NodeId> producers;
    for (const ValueId v : graph.inputs({n})) {
      if (v.valid() && !graph.is_leaf(v)) producers.push_back(graph.producer(v));
    }
    std::sort(producers.begin(), producers.end());
    producers.erase(std::unique(producers.begin(), producers.end()), producers.end());
    hard[n] = static_cast<uint32_t>(producers.size());
    for (const NodeId p : producers) readers[p.index].push_back({n});
  }
  const std::vector<uint32_t> places = choose_places(graph);
  using Entry = std::pair<uint32_t, uint32_t>;  // place, node
  using Queue = std::priority_queue<Entry, std::vector<Entry>, std::greater<>>;
  Queue ready, held;  // held: operands are there, wishes are not
  std::vector<bool> done(num_nodes, false);
  for (uint32_t n = 0; n < num_nodes; ++n) {
    if (!graph.is_leaf(NodeId{n}) && hard[n] == 0) (soft[n] == 0 ? ready : held).emplace(places[n], n);
  }
  std::vector<NodeId> order;
  while (!ready.empty() || !held.empty()) {
    Queue& from = ready.empty() ? held : ready;
    const uint32_t n = from.top().second;
    from.pop();
    if (done[n]) continue;
    done[n] = true;
    order.push_back({n});
    for (const NodeId reader : readers[n]) {
      if (--hard[reader.index] == 0) (soft[reader.index] == 0 ? ready : held).emplace(places[reader.index], reader.index);
    }
    for (const NodeId writer : later[n]) {
      if (--soft[writer.index] == 0 && hard[writer.index] == 0 && !done[writer.index]) ready.emplace(places[writer.index], writer.index);
    }
  }
  return order;
}

}  // namespace

Schedule make_schedule(const Graph& graph) {
  Schedule schedule;
  schedule.position.assign(graph.num_nodes(), ~0U);
  for (const NodeId n : order_nodes(graph)) {
    schedule.position[n.index] = static_cast<uint32_t>(schedule.steps.size());
    const bool communicates = graph.def(n).role == Role::kCollective;
    schedule.steps.push_back({n, communicates ? Stream::kCommunication : Stream::kCompute});
  }
  const auto event_of = [&](uint32_t position) {
    ScheduleStep& step = schedule.steps[position];
    if (step.signal == ~0U) step.signal = schedule.num_events++;
    return step.signal;
  };
  // What each stream has already waited for on the other one (its position); later waits for earlier steps are implied.
  int64_t waited[2] = {-1, -1}, newest[2] = {-1, -1};
  for (uint32_t p = 0; p < schedule.steps.size(); ++p) {
    ScheduleStep& step = schedule.steps[p];
    const auto self = static_cast<size_t>(step.stream), other = 1 - self;
    int64_t needed = -1;
    if (step.stream == Stream::kCommunication) {
      needed = newest[other];  // everything before: its output may reuse bytes that a compute step still reads
    } else {
      for (const ValueId v : graph.inputs(step.node)) {
        if (!v.valid() || graph.is_leaf(v)) continue;
        const uint32_t from = schedule.position[graph.producer(v).index];
        if (schedule.steps[from].stream != step.stream) needed = std::max<int64_t>(needed, from);
      }
    }
    step.first_wait = static_cast<uint32_t>(schedule.waits.size());
    if (needed > waited[self]) {
      schedule.waits.push_back(event_of(static_cast<uint32_t>(needed)));
      schedule.steps[p].num_waits = 1;
      waited[self] = needed;
    }
    newest[self] = p;
  }
  return schedule;
}

}  // namespace glim
