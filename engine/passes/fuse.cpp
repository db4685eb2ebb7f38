#include "engine/passes/fuse.h"

#include <fmt/format.h>

#include <algorithm>

namespace glim {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// Whether one of `values` is computed from an output of one of `nodes`.
bool any_depends_on(const Graph& graph, std::span<const ValueId> values, std::span<const NodeId> nodes) {
  uint32_t last_value = 0;
  for (const ValueId v : values) last_value = std::max(last_value, v.valid() ? v.index : 0);
  const NodeId first = *std::min_element(nodes.begin(), nodes.end());
  const uint32_t first_value = graph.output(first).index;
  if (last_value < first_value) return false;
  std::vector<bool> tainted(last_value - first_value + 1, false);
  const auto is_tainted = [&](ValueId v) { return v.valid() && v.index >= first_value && tainted[v.index - first_value]; };
  for (NodeId n = first; n.index < graph.num_nodes() && graph.output(n).index <= last_value; ++n.index) {
    const std::span<const ValueId> in = graph.inputs(n);
    if (std::find(nodes.begin(), nodes.end(), n) == nodes.end() && std::none_of(in.begin(), in.end(), is_tainted)) continue;
    for (uint32_t k = 0; k < graph.node(n).num_outputs; ++k) {
      if (graph.output(n, k).index <= last_value) tainted[graph.output(n, k).index - first_value] = true;
    }
  }
  return std::any_of(values.begin(), values.end(), is_tainted);
}

struct Accepted {
  NodeId root;
  FusionMatch match;
  std::vector<NodeId> nodes;  // root and interior
};

// One round: the matches found on a graph, and the graph in which each has become one node.
class Fuser {
 public:
  Fuser(const Graph& graph, bool joint)
      : graph_(graph),
        consumers_(count_consumers(graph)),
        match_of_(graph.num_nodes(), kNone),
        hidden_(graph.num_values(), false),
        needed_(graph.num_values(), false),
        rewriter_(graph) {
    const OpTable& table = graph.table();
    patterns_.resize(table.size());
    for (size_t row = 0; row < table.size(); ++row) {
      for (const FusionPattern& pattern : table[OpId{static_cast<uint16_t>(row)}].fusions) {
        if (pattern.joint != joint) continue;
        if (const std::optional<OpId> root = table.find(pattern.root)) patterns_[root->index].push_back(pattern.match);
      }
    }
  }

  // From the end of the tape: of two matches that overlap, the one that ends later holds more.
  bool find() {
    for (auto n = static_cast<uint32_t>(graph_.num_nodes()); n-- > 0;) {
      for (const FuseFn match : patterns_[graph_.node({n}).op.index]) {
        std::optional<FusionMatch> found = match({graph_, {n}, consumers_});
        if (found && accept({n}, std::move(*found))) break;
      }
    }
    return !accepted_.empty();
  }

  Rewritten rewrite() && {
    emitted_.assign(graph_.num_nodes(), false);
    open_.assign(graph_.num_nodes(), false);
    drop_cycles();
    for (uint32_t n = 0; n < graph_.num_nodes(); ++n) {
      // A match is emitted where its root stood, or where a value of it is asked for before.
      if (match_of_[n] == kNone || accepted_[match_of_[n]].root.index == n) emit_with_operands({n});
    }
    return std::move(rewriter_).finish();
  }

 private:
  bool accept(NodeId root, FusionMatch match) {
    std::vector<NodeId> nodes = match.interior;
    nodes.push_back(root);
    for (const NodeId n : nodes) {
      if (match_of_[n.index] != kNone) return false;  // belongs to another match already
    }
    for (const auto& [value, output] : match.replaced) {
      GLIM_CHECK(std::find(nodes.begin(), nodes.end(), graph_.producer(value)) != nodes.end(),
                 fmt::format("a fusion to '{}' replaces a value that none of its nodes computes", graph_.table()[match.op].name));
    }
    const std::vector<ValueId> gone = interior_values(match, nodes);
    if (escapes(gone, nodes) || any_depends_on(graph_, match.operands, nodes)) return false;
    // A pattern may look through nodes of another match: neither may need what the other one hides.
    if (std::any_of(gone.begin(), gone.end(), [this](ValueId v) { return needed_[v.index]; })) return false;
    if (std::any_of(match.operands.begin(), match.operands.end(), [this](ValueId v) { return v.valid() && hidden_[v.index]; }))
      return false;
    for (const ValueId v : gone) hidden_[v.index] = true;
    for (const ValueId v : match.operands) {
      if (v.valid()) needed_[v.index] = true;
    }
    for (const NodeId n : nodes) match_of_[n.index] = static_cast<uint32_t>(accepted_.size());
    accepted_.push_back({root, std::move(match), std::move(nodes)});
    return true;
  }

  // Values that the match computes and does not replace.
  [[nodiscard]] std::vector<ValueId> interior_values(const FusionMatch& match, std::span<const NodeId> nodes) const {
    std::vector<ValueId> values;
    for (const NodeId n : nodes) {
      for (uint32_t k = 0; k < graph_.node(n).num_outputs; ++k) {
        const ValueId v = graph_.output(n, k);
        if (std::none_of(match.replaced.begin(), match.replaced.end(), [v](const auto& pair) { return pair.first == v; }))
          values.push_back(v);
      }
    }
    return values;
  }

  // Whether something outside of the match reads one of the values.
  [[nodiscard]] bool escapes(std::span<const ValueId> values, std::span<const NodeId> nodes) const {
    return std::any_of(values.begin(), values.end(), [&](ValueId v) {
      uint32_t inside = 0;
      for (const NodeId reader : nodes) {
        const std::span<const ValueId> in = graph_.inputs(reader);
        inside += static_cast<uint32_t>(std::count(in.begin(), in.end(), v));
      }
      return consumers_[v] != inside;
    });
  }

  // ---- emission in the order of data dependence. A unit is a node, or a match (known by its root).
  [[nodiscard]] NodeId unit(NodeId n) const { return match_of_[n.index] == kNone ? n : accepted_[match_of_[n.index]].root; }
  [[nodiscard]] std::span<const ValueId> operands(NodeId u) const {
    return match_of_[u.index] == kNone ? graph_.inputs(u) : std::span<const ValueId>(accepted_[match_of_[u.index]].match.operands);
  }

  // Depth first from `start`, with a stack of its own. Calls `leave` when all operands of a unit are done. Returns the units of
  // a cycle if there is one: two matches that each use what the other one computes.
  template <class Leave>
  std::vector<NodeId> visit(NodeId start, std::vector<bool>& done, std::vector<bool>& open, Leave leave) {
    struct Frame {
      NodeId u;
      size_t next = 0;
    };
    std::vector<Frame> stack;
    const auto enter = [&](NodeId u) {
      open[u.index] = true;
      stack.push_back({u});
    };
    if (!done[unit(start).index]) enter(unit(start));
    while (!stack.empty()) {
      Frame& top = stack.back();
      const std::span<const ValueId> in = operands(top.u);
      if (top.next == in.size()) {
        done[top.u.index] = true;
        open[top.u.index] = false;
        leave(top.u);
        stack.pop_back();
        continue;
      }
      const ValueId v = in[top.next++];
      if (!v.valid()) continue;
      const NodeId needed = unit(graph_.producer(v));
      if (done[needed.index]) continue;
      if (open[needed.index]) {
        std::vector<NodeId> cycle;
        for (size_t k = stack.size(); k-- > 0;) {
          cycle.push_back(stack[k].u);
          if (stack[k].u == needed) break;
        }
        return cycle;
      }
      enter(needed);
    }
    return {};
  }

  // No match depends on itself (accept), but several may on each other: then the one found last of a cycle is given up.
  void drop_cycles() {
    const auto find_cycle = [this] {
      std::vector<bool> done(graph_.num_nodes(), false), open(graph_.num_nodes(), false);
      for (const Accepted& accepted : accepted_) {
        if (match_of_[accepted.root.index] == kNone) continue;
        std::vector<NodeId> cycle = visit(accepted.root, done, open, [](NodeId) {});
        if (!cycle.empty()) return cycle;
      }
      return std::vector<NodeId>{};
    };
    for (std::vector<NodeId> cycle = find_cycle(); !cycle.empty(); cycle = find_cycle()) {
      uint32_t last = 0;
      for (const NodeId u : cycle) last = match_of_[u.index] == kNone ? last : std::max(last, match_of_[u.index]);
      for (const NodeId n : accepted_[last].nodes) match_of_[n.index] = kNone;
    }
  }

  void emit_with_operands(NodeId n) {
    const std::vector<NodeId> cycle = visit(n, emitted_, open_, [this](NodeId u) { emit(u); });
    GLIM_CHECK(cycle.empty(), "a cycle of matches was not given up");
  }

  void emit(NodeId u) {
    if (match_of_[u.index] == kNone) {
      rewriter_.copy(u);
      return;
    }
    const FusionMatch& match = accepted_[match_of_[u.index]].match;
    rewriter_.set_origin_of(u);
    std::vector<ValueId> in;
    for (const ValueId v : match.operands) in.push_back(rewriter_[v]);
    Graph& to = rewriter_.to();
    const Result<NodeId> node = to.emit(match.op, in, std::span<const uint32_t>(match.attr_words));
    GLIM_CHECK(bool(node), fmt::format("a fusion pattern made a wrong node: {}", node.error().message));
    for (const auto& [value, output] : match.replaced) {
      GLIM_CHECK(
          output < to.node(*node).num_outputs && to.type(to.output(*node, output)) == graph_.type(value),
          fmt::format("a fusion to '{}' replaces a {} by what is none", graph_.table()[match.op].name, to_string(graph_.type(value))));
      rewriter_.map(value, to.output(*node, output));
    }
  }

  const Graph& graph_;
  Consumers consumers_;
  std::vector<std::vector<FuseFn>> patterns_;  // by row of the root op
  std::vector<uint32_t> match_of_;             // by node: index into accepted_
  std::vector<Accepted> accepted_;
  std::vector<bool> hidden_, needed_;  // by value: gone with a match; operand of a match
  std::vector<bool> emitted_, open_;   // by unit, while emitting
  Rewriter rewriter_;
};

Result<Rewritten> fuse(const Graph& graph, bool joint) {
  Rewriter rewriter(graph);
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) rewriter.copy({n});
  Rewritten result = std::move(rewriter).finish();
  const size_t max_rounds = graph.num_nodes() + 1;  // every round removes a node, or a pattern matches what it makes
  for (size_t round = 0;; ++round) {
    GLIM_CHECK(round < max_rounds, "fusion does not end: a pattern matches what it makes");
    Fuser fuser(result.graph, joint);
    if (!fuser.find()) return result;
    Rewritten next = std::move(fuser).rewrite();
    for (ValueId& v : result.map.values) v = next.map[v];
    result = {std::move(next.graph), std::move(result.map)};
  }
}

}  // namespace

std::optional<NodeId> FuseArgs::sole_producer(ValueId v, std::string_view op) const {
  if (!v.valid() || consumers[v] != 1) return std::nullopt;
  const NodeId n = graph.producer(v);
  return graph.def(n).name == op ? std::optional(n) : std::nullopt;
}

bool FuseArgs::is_main_gradient(ValueId v) const {
  if (consumers[v] != 1) return false;
  if (graph.is_leaf(v)) return graph.leaf(v).kind == LeafKind::kGradient;
  const std::span<const ValueId> parts = graph.inputs(graph.producer(v));
  return graph.def(graph.producer(v)).role == Role::kConcat && std::all_of(parts.begin(), parts.end(), [&](ValueId part) {
           return graph.is_leaf(part) && graph.leaf(part).kind == LeafKind::kGradient && consumers[part] == 1;
         });
}

bool FuseArgs::depends_on(ValueId v, NodeId n) const {
  const ValueId values[] = {v};
  const NodeId nodes[] = {n};
  return any_depends_on(graph, values, nodes);
}

Result<Rewritten> fuse_forward(const Graph& graph, const PassContext&) { return fuse(graph, false); }
Result<Rewritten> fuse_joint(const Graph& graph, const PassContext&) { return fuse(graph, true); }

}  // namespace glim
