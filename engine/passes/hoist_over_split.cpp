#include "engine/passes/hoist_over_split.h"

#include <algorithm>
#include <optional>

#include "engine/analysis/consumers.h"

namespace glim {
namespace {

struct Hoist {
  std::vector<NodeId> readers;  // of each part
  bool accumulates = false;     // adds into gradients; otherwise casts
};

bool is_sole_gradient(const Graph& graph, const Consumers& consumers, ValueId v) {
  return graph.is_leaf(v) && graph.leaf(v).kind == LeafKind::kGradient && consumers[v] == 1;
}

std::optional<Hoist> match(const Graph& graph, NodeId split, const Consumers& consumers, const Readers& readers) {
  if (graph.is_leaf(split) || graph.def(split).role != Role::kSplit || integer_at(graph.attr_words(split), 0) != 0) return {};
  Hoist hoist;
  for (uint32_t k = 0; k < graph.node(split).num_outputs; ++k) {
    const ValueId part = graph.output(split, k);
    if (consumers[part] != 1 || readers[part].size() != 1) return {};
    hoist.readers.push_back(readers[part][0]);
  }
  const NodeId first = hoist.readers[0];
  const Role role = graph.def(first).role;
  if (role != Role::kCast && role != Role::kAdd) return {};
  hoist.accumulates = role == Role::kAdd;
  for (uint32_t k = 0; k < hoist.readers.size(); ++k) {
    const NodeId reader = hoist.readers[k];
    if (graph.node(reader).op != graph.node(first).op || !std::ranges::equal(graph.attr_words(reader), graph.attr_words(first))) return {};
    if (std::find(hoist.readers.begin(), hoist.readers.begin() + k, reader) != hoist.readers.begin() + k) return {};
    if (!hoist.accumulates) continue;
    const std::span<const ValueId> in = graph.inputs(reader);
    if (in[1] != graph.output(split, k) || !is_sole_gradient(graph, consumers, in[0])) return {};
  }
  return hoist;
}

ValueId emit(Graph& to, OpId op, std::span<const ValueId> operands, std::span<const uint32_t> words) {
  const Result<NodeId> node = to.emit(op, operands, words);
  GLIM_CHECK(bool(node), node.error().message);
  return to.output(*node);
}

void apply(const Graph& graph, NodeId split, const Hoist& hoist, Rewriter& rewriter) {
  std::vector<ValueId> operands;
  if (hoist.accumulates) {
    std::vector<ValueId> gradients;
    for (const NodeId reader : hoist.readers) {
      const ValueId gradient = graph.inputs(reader)[0];
      if (!rewriter.has(gradient)) rewriter.copy(graph.producer(gradient));
      gradients.push_back(rewriter[gradient]);
    }
    rewriter.set_origin_of(hoist.readers[0]);
    const OpId concat = graph.table().with_role(Role::kConcat);
    operands.push_back(emit(rewriter.to(), concat, gradients, default_words(graph.table()[concat].attrs)));  // axis 0
  }
  operands.push_back(rewriter[graph.inputs(split)[0]]);
  rewriter.set_origin_of(hoist.readers[0]);
  const ValueId whole = emit(rewriter.to(), graph.node(hoist.readers[0]).op, operands, graph.attr_words(hoist.readers[0]));
  const ValueId parts = emit(rewriter.to(), graph.node(split).op, {&whole, 1}, graph.attr_words(split));
  for (uint32_t k = 0; k < hoist.readers.size(); ++k) rewriter.map(graph.output(hoist.readers[k]), {parts.index + k});
}

// One round; `changed` says whether there was anything to do. A cast that was hoisted may free an addition for the next round.
Rewritten hoist_once(const Graph& graph, bool& changed) {
  const Consumers consumers = count_consumers(graph);
  const Readers readers = find_readers(graph);
  std::vector<bool> is_gone(graph.num_nodes(), false);
  Rewriter rewriter(graph);
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    if (is_gone[n] || (graph.is_leaf(NodeId{n}) && rewriter.has(graph.output({n})))) continue;
    const std::optional<Hoist> hoist = match(graph, {n}, consumers, readers);
    if (!hoist) {
      rewriter.copy({n});
      continue;
    }
    apply(graph, {n}, *hoist, rewriter);
    for (const NodeId reader : hoist->readers) is_gone[reader.index] = true;
    changed = true;
  }
  return std::move(rewriter).finish();
}

}  // namespace

Result<Rewritten> hoist_over_split(const Graph& graph, const PassContext&) {
  bool changed = false;
  Rewritten result = hoist_once(graph, changed);
  while (changed) {
    changed = false;
    Rewritten next = hoist_once(result.graph, changed);
    for (ValueId& v : result.map.values) v = next.map[v];
    result.graph = std::move(next.graph);
  }
  return result;
}

}  // namespace glim
