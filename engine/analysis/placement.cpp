#include "engine/analysis/placement.h"

#include <algorithm>
#include <set>

#include "engine/analysis/aliases.h"
#include "engine/leaf_layout.h"

namespace glim {
namespace {

struct Extent {
  int64_t rows, columns;
};
Extent extent_of(const TensorType& type) {
  if (type.shape.rank == 2) return {type.shape[0], type.shape[1]};
  return {type.shape.numel(), 1};
}

// One attempt at placing all values, with some sharings forbidden.
class Placer {
 public:
  Placer(const Graph& graph, const Schedule& schedule, const std::set<uint32_t>& forbidden_updates,
         const std::set<uint32_t>& forbidden_assemblies)
      : graph_(graph),
        schedule_(schedule),
        forbidden_updates_(forbidden_updates),
        forbidden_assemblies_(forbidden_assemblies),
        aliases_(find_aliases(graph)),
        lifetimes_(find_lifetimes(graph, schedule)),
        content_(graph.num_values()),
        members_(graph.num_values()),
        stride_(graph.num_values()),
        is_leaf_buffer_(graph.num_values(), false) {
    placements_.values.resize(graph.num_values());
    placements_.node_runs.assign(graph.num_nodes(), true);
    for (uint32_t v = 0; v < graph.num_values(); ++v) {
      placements_.values[v].buffer = v;
      content_[v] = v;
      members_[v] = {ValueId{v}};
      stride_[v] = extent_of(graph.type({v})).columns;
      is_leaf_buffer_[v] = graph.is_leaf(ValueId{v});
    }
  }

  [[nodiscard]] const std::set<uint32_t>& failed_assemblies() const { return failed_assemblies_; }

  Placements run() {
    for (const ScheduleStep& step : schedule_.steps) place_views(step.node);
    for (uint32_t k = 0; k < graph_.updates().size(); ++k) place_update(k);
    for (const ScheduleStep& step : schedule_.steps) place_assembly(step.node);
    for (const ScheduleStep& step : schedule_.steps) place_required(step.node);
    for (const ScheduleStep& step : schedule_.steps) place_in_place(step.node);
    collect();
    return std::move(placements_);
  }

 private:
  [[nodiscard]] uint32_t buffer_of(ValueId v) const { return placements_.values[v.index].buffer; }
  // Whether `out` is written over `in` by the node that reads `in` for the last time.
  [[nodiscard]] bool works_in_place(ValueId in, ValueId out) const {
    const AliasFact alias = aliases_[out.index];
    return (alias.kind == AliasKind::kInPlace || alias.kind == AliasKind::kMust) &&
           graph_.inputs(graph_.producer(out))[alias.operand] == in;
  }
  [[nodiscard]] uint32_t content(uint32_t v) const {
    while (content_[v] != v) v = content_[v];
    return v;
  }

  // Whether two values may share the bytes at which they overlap.
  [[nodiscard]] bool compatible(ValueId a, ValueId b) const {
    if (content(a.index) == content(b.index)) return true;
    const Lifetime& first = lifetimes_[a.index].begin <= lifetimes_[b.index].begin ? lifetimes_[a.index] : lifetimes_[b.index];
    const Lifetime& second = &first == &lifetimes_[a.index] ? lifetimes_[b.index] : lifetimes_[a.index];
    const ValueId early = &first == &lifetimes_[a.index] ? a : b, late = early == a ? b : a;
    if (first.end < second.begin) return true;
    return first.end == second.begin && works_in_place(early, late);
  }

  // Puts the buffer of `moved` into the buffer of `fixed` such that `moved` lies at (row, column) relative to `fixed`.
  bool join(ValueId fixed, ValueId moved, int64_t row, int64_t column) {
    uint32_t to = buffer_of(fixed), from = buffer_of(moved);
    const Placement at = placements_.values[fixed.index], was = placements_.values[moved.index];
    int64_t delta_row = at.row + row - was.row, delta_column = at.column + column - was.column;
    if (to == from) return delta_row == 0 && delta_column == 0;
    if (graph_.type(fixed).dtype != graph_.type(moved).dtype) return false;
    const bool widen_from = stride_[from] < stride_[to], widen_to = stride_[to] < stride_[from];
    if ((widen_from && !may_widen(from)) || (widen_to && !may_widen(to))) return false;
    for (const ValueId a : members_[to]) {
      for (const ValueId b : members_[from]) {
        if (overlap(a, b, delta_row, delta_column) && !compatible(a, b)) return false;
      }
    }
    if (members_[from].size() > members_[to].size()) {  // move the smaller one
      std::swap(from, to);
      delta_row = -delta_row;
      delta_column = -delta_column;
    }
    stride_[to] = std::max(stride_[to], stride_[from]);
    is_leaf_buffer_[to] = is_leaf_buffer_[to] || is_leaf_buffer_[from];
    for (const ValueId v : members_[from]) {
      Placement& place = placements_.values[v.index];
      place = {to, place.row + delta_row, place.column + delta_column};
      members_[to].push_back(v);
    }
    members_[from].clear();
    return true;
  }
  [[nodiscard]] bool may_widen(uint32_t buffer) const {
    return !is_leaf_buffer_[buffer] &&
           std::all_of(members_[buffer].begin(), members_[buffer].end(), [&](ValueId v) { return graph_.type(v).shape.rank == 2; });
  }
  [[nodiscard]] bool overlap(ValueId a, ValueId b, int64_t delta_row, int64_t delta_column) const {
    const Placement& pa = placements_.values[a.index];
    const Placement& pb = placements_.values[b.index];
    const Extent ea = extent_of(graph_.type(a)), eb = extent_of(graph_.type(b));
    const int64_t row = pb.row + delta_row, column = pb.column + delta_column;
    return pa.row < row + eb.rows && row < pa.row + ea.rows && pa.column < column + eb.columns && column < pa.column + ea.columns;
  }

  void place_views(NodeId n) {
    bool all = true;
    for (uint16_t k = 0; k < graph_.node(n).num_outputs; ++k) {
      const AliasFact alias = aliases_[graph_.output(n, k).index];
      if (alias.kind != AliasKind::kView) return;
      const ValueId in = graph_.inputs(n)[alias.operand], out = graph_.output(n, k);
      const Region at = graph_.region(n, k);
      const uint32_t content_before = content_[out.index];
      content_[out.index] = content(in.index);
      if (join(in, out, at.row, at.column)) continue;
      content_[out.index] = content_before;
      all = false;
    }
    if (all) placements_.node_runs[n.index] = false;
  }

  void place_update(uint32_t k) {
    const StateUpdate& update = graph_.updates()[k];
    const bool shared = !forbidden_updates_.contains(k) && !is_leaf_of_another(update) && join(update.state, update.next, 0, 0);
    if (!shared) placements_.copies.push_back(update);
  }
  // Two leaves never share bytes, so the next value may not lie in a buffer that holds a leaf at the same place.
  [[nodiscard]] bool is_leaf_of_another(const StateUpdate& update) const {
    return graph_.is_leaf(update.next) && update.next != update.state;
  }

  void place_required(NodeId n) {
    for (uint16_t k = 0; k < graph_.node(n).num_outputs; ++k) {
      const AliasFact alias = aliases_[graph_.output(n, k).index];
      if (alias.kind != AliasKind::kMust) continue;
      const ValueId in = graph_.inputs(n)[alias.operand], out = graph_.output(n, k);
      if (may_overwrite(in, out) && join(in, out, 0, 0)) continue;
      placements_.copies_before.push_back({n, k, alias.operand});
    }
  }

  void place_assembly(NodeId n) {
    if (aliases_[graph_.output(n).index].kind != AliasKind::kAssemble) return;
    const ValueId out = graph_.output(n);
    const std::span<const ValueId> in = graph_.inputs(n);
    size_t num_leaves = 0;
    for (const ValueId v : in) num_leaves += is_leaf_buffer_[buffer_of(v)] ? 1 : 0;
    // Leaves are assembled only among themselves, and as a whole: they have to tile the result.
    const bool of_leaves = num_leaves == in.size() && !forbidden_assemblies_.contains(n.index);
    if (num_leaves > 0 && !of_leaves) return;
    bool all = true;
    // Leaves may share a buffer already (main gradients that come out packed): all of them have to count as parts before the first is
    // joined.
    for (const ValueId v : in) {
      if (of_leaves && content_[v.index] == v.index) content_[v.index] = content(out.index);
    }
    for (uint16_t k = 0; k < in.size(); ++k) {
      if (std::find(in.begin(), in.begin() + k, in[k]) != in.begin() + k) {
        all = false;  // the same value twice cannot lie at two places
        continue;
      }
      const Region at = graph_.region(n, k);
      const uint32_t part = in[k].index;
      // A view shows only a part of some other content, and one content cannot be part of two assemblies: those are copied.
      const bool is_whole = content_[part] == part || (of_leaves && content_[part] == content(out.index));
      if (is_whole) content_[part] = content(out.index);
      if (is_whole && join(out, in[k], at.row, at.column)) continue;
      if (is_whole) content_[part] = part;
      all = false;
    }
    if (all)
      placements_.node_runs[n.index] = false;
    else if (of_leaves)
      failed_assemblies_.insert(n.index);
  }

  void place_in_place(NodeId n) {
    for (uint16_t k = 0; k < graph_.node(n).num_outputs; ++k) {
      const AliasFact alias = aliases_[graph_.output(n, k).index];
      if (alias.kind != AliasKind::kInPlace) continue;
      const ValueId in = graph_.inputs(n)[alias.operand], out = graph_.output(n, k);
      if (!in.valid() || graph_.type(in) != graph_.type(out) || !may_overwrite(in, out)) continue;
      join(in, out, 0, 0);
    }
  }
  // The buffer of a leaf takes no values but the next ones of that leaf.
  [[nodiscard]] bool may_overwrite(ValueId in, ValueId out) const {
    if (buffer_of(in) == buffer_of(out)) return true;
    if (is_leaf_buffer_[buffer_of(in)] || is_leaf_buffer_[buffer_of(out)]) return false;
    return true;
  }

  void collect() {
    placements_.buffers.resize(graph_.num_values());
    for (uint32_t b = 0; b < graph_.num_values(); ++b) {
      if (members_[b].empty()) continue;
      Buffer& buffer = placements_.buffers[b];
      int64_t row0 = INT64_MAX, row1 = 0, column0 = INT64_MAX, column1 = 0;
      buffer.lifetime = {INT64_MAX, Lifetime::kBefore};
      for (const ValueId v : members_[b]) {
        const Placement& at = placements_.values[v.index];
        const Extent extent = extent_of(graph_.type(v));
        row0 = std::min(row0, at.row);
        column0 = std::min(column0, at.column);
        row1 = std::max(row1, at.row + extent.rows);
        column1 = std::max(column1, at.column + extent.columns);
        buffer.lifetime.begin = std::min(buffer.lifetime.begin, lifetimes_[v.index].begin);
        buffer.lifetime.end = std::max(buffer.lifetime.end, lifetimes_[v.index].end);
        if (graph_.is_leaf(v)) buffer.leaves.push_back(v);
      }
      buffer.rows = row1 - row0;
      buffer.columns = std::max(stride_[b], column1 - column0);
      buffer.dtype = graph_.type(members_[b].front()).dtype;
      for (const ValueId v : members_[b]) {
        placements_.values[v.index].row -= row0;
        placements_.values[v.index].column -= column0;
      }
      std::sort(buffer.leaves.begin(), buffer.leaves.end(),
                [&](ValueId a, ValueId c) { return placements_.values[a.index].row < placements_.values[c.index].row; });
    }
  }

  const Graph& graph_;
  const Schedule& schedule_;
  const std::set<uint32_t>& forbidden_updates_;
  const std::set<uint32_t>& forbidden_assemblies_;
  std::vector<AliasFact> aliases_;
  std::vector<Lifetime> lifetimes_;
  std::vector<uint32_t> content_;  // union of values that are the same data at different extents
  std::vector<std::vector<ValueId>> members_;
  std::vector<int64_t> stride_;
  std::vector<bool> is_leaf_buffer_;
  std::set<uint32_t> failed_assemblies_;  // of leaves: half done, to be left out of the next attempt
  Placements placements_;
};

// A buffer with leaves must consist of exactly these leaves, at the places that the layout gives them.
bool leaves_tile(const Graph& graph, const Placements& placements, const Buffer& buffer, const LeafLayout* layout) {
  int64_t row = 0;
  const LeafSlot* first = layout != nullptr ? layout->find(graph.leaf(buffer.leaves.front()).name) : nullptr;
  for (const ValueId v : buffer.leaves) {
    const Placement& at = placements.values[v.index];
    const TensorType& type = graph.type(v);
    const bool flat = type.shape.rank != 2;
    if (at.row != row || at.column != 0 || (flat ? 1 : type.shape[1]) != buffer.columns) return false;
    if (arena_of(graph.leaf(v).kind) != arena_of(graph.leaf(buffer.leaves.front()).kind)) return false;
    if (layout != nullptr) {
      const LeafSlot* slot = layout->find(graph.leaf(v).name);
      GLIM_CHECK(slot != nullptr, "a leaf is missing from the layout");
      if (slot->offset != first->offset + placements.offset_bytes(v)) return false;
    }
    row += flat ? type.shape.numel() : type.shape[0];
  }
  return row == buffer.rows;
}

}  // namespace

Placements place_values(const Graph& graph, const Schedule& schedule, const LeafLayout* layout) {
  std::set<uint32_t> forbidden_updates, forbidden_assemblies;
  const std::vector<AliasFact> aliases = find_aliases(graph);
  for (;;) {
    Placer placer(graph, schedule, forbidden_updates, forbidden_assemblies);
    Placements placements = placer.run();
    if (!placer.failed_assemblies().empty()) {
      forbidden_assemblies.insert(placer.failed_assemblies().begin(), placer.failed_assemblies().end());
      continue;
    }
    std::vector<bool> is_bad(placements.buffers.size(), false);
    bool any_bad = false;
    for (size_t b = 0; b < placements.buffers.size(); ++b) {
      const Buffer& buffer = placements.buffers[b];
      if (buffer.leaves.empty() || leaves_tile(graph, placements, buffer, layout)) continue;
      is_bad[b] = any_bad = true;
    }
    if (!any_bad) return placements;
    // Forbid what brought the values of the offending buffers together, and place again.
    const size_t before = forbidden_updates.size() + forbidden_assemblies.size();
    for (uint32_t k = 0; k < graph.updates().size(); ++k) {
      const StateUpdate& update = graph.updates()[k];
      const uint32_t b = placements.values[update.state.index].buffer;
      if (is_bad[b] && placements.values[update.next.index].buffer == b) forbidden_updates.insert(k);
    }
    for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
      const ValueId v = graph.output({n});
      if (aliases[v.index].kind == AliasKind::kAssemble && is_bad[placements.values[v.index].buffer]) forbidden_assemblies.insert(n);
    }
    GLIM_CHECK(forbidden_updates.size() + forbidden_assemblies.size() > before, "a buffer of leaves cannot be taken apart");
  }
}

}  // namespace glim
