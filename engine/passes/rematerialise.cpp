#include "engine/passes/rematerialise.h"

#include <algorithm>

namespace glim {
namespace {

class Writer {
 public:
  Writer(const Graph& from, const RematerialisationChoice& choice)
      : from_(from),
        choice_(choice),
        buffer_of_(find_buffers(from)),
        backward_(find_backward_region(from)),
        to_(from),
        copies_(from.num_values()) {}

  Rewritten run() && {
    const std::vector<bool> kept = find_kept();
    for (uint32_t n = 0; n < from_.num_nodes(); ++n) {
      if (backward_.nodes[n]) {
        for (const ValueId v : from_.inputs({n})) make_copies_for(v);
        copy_reading_copies({n});
      } else if (kept[n]) {
        to_.copy({n});
      }
    }
    for (uint32_t v = 0; v < from_.num_values(); ++v) {
      if (!to_.has({v}) && copies_[v].valid()) to_.map({v}, copies_[v]);
    }
    return std::move(to_).finish();
  }

 private:
  // Whether the backward pass reads a copy of this forward value: its buffer is computed again.
  [[nodiscard]] bool reads_copy(ValueId v) const {
    const ValueId buffer = buffer_of_[v.index];
    return choice_.recomputed[from_.producer(buffer).index] && !choice_.saved[buffer.index];
  }

  // Forward nodes whose originals still serve something (or served nothing before).
  [[nodiscard]] std::vector<bool> find_kept() const {
    std::vector<bool> kept(from_.num_nodes(), false), original_read(from_.num_values(), false), copy_read(from_.num_values(), false);
    for (const NamedValue& output : from_.outputs()) original_read[output.value.index] = true;
    for (const StateUpdate& update : from_.updates()) original_read[update.next.index] = true;
    for (uint32_t n = static_cast<uint32_t>(from_.num_nodes()); n-- > 0;) {
      bool original = false, copy = false;
      for (uint32_t k = 0; k < from_.node({n}).num_outputs; ++k) {
        original = original || original_read[from_.output({n}, k).index];
        copy = copy || copy_read[from_.output({n}, k).index];
      }
      const bool in_backward = backward_.nodes[n];
      kept[n] = original || !copy;
      for (const ValueId v : from_.inputs({n})) {
        if (!v.valid()) continue;
        if ((in_backward || copy) && reads_copy(v)) copy_read[v.index] = true;
        if ((in_backward || copy) && !reads_copy(v)) original_read[v.index] = true;
        if (!in_backward && kept[n]) original_read[v.index] = true;
      }
    }
    return kept;
  }

  // Copies what has to run again before `v` can be read, in tape order: operands come first.
  void make_copies_for(ValueId v) {
    std::vector<NodeId> missing;
    std::vector<ValueId> open{v};
    while (!open.empty()) {
      const ValueId at = open.back();
      open.pop_back();
      if (!at.valid() || copies_[at.index].valid() || !reads_copy(at)) continue;
      const NodeId n = from_.producer(at);
      missing.push_back(n);
      for (uint32_t k = 0; k < from_.node(n).num_outputs; ++k) copies_[from_.output(n, k).index] = at;  // visited; replaced below
      for (const ValueId operand : from_.inputs(n)) open.push_back(operand);
    }
    std::sort(missing.begin(), missing.end());
    for (const NodeId n : missing) {
      const ValueId first = from_.output(n);
      std::vector<ValueId> originals;
      for (uint32_t k = 0; k < from_.node(n).num_outputs; ++k)
        originals.push_back(to_.has({first.index + k}) ? to_[{first.index + k}] : ValueId{});
      copy_reading_copies(n);
      for (uint32_t k = 0; k < originals.size(); ++k) {
        copies_[first.index + k] = to_[{first.index + k}];
        to_.map({first.index + k}, originals[k]);
      }
    }
  }

  // Copies a node that reads the copies of its operands where there are some.
  void copy_reading_copies(NodeId n) {
    std::vector<std::pair<ValueId, ValueId>> originals;
    for (const ValueId v : from_.inputs(n)) {
      if (!v.valid() || !reads_copy(v)) continue;
      originals.push_back({v, to_.has(v) ? to_[v] : ValueId{}});
      to_.map(v, copies_[v.index]);
    }
    to_.copy(n);
    for (size_t k = originals.size(); k-- > 0;) to_.map(originals[k].first, originals[k].second);
  }

  const Graph& from_;
  const RematerialisationChoice& choice_;
  const std::vector<ValueId> buffer_of_;
  const BackwardRegion backward_;
  Rewriter to_;
  std::vector<ValueId> copies_;  // by old value: its copy in the new graph
};

}  // namespace

Result<Rewritten> rematerialise(const Graph& graph, const PassContext& context) {
  const RematerialisationChoice choice = choose_rematerialisation(graph, context);
  return Writer(graph, choice).run();
}

RematerialisationReport describe_saved(const Graph& graph, const PassContext& context) {
  return choose_rematerialisation(graph, context).report;
}

}  // namespace glim
