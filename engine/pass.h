#pragma once
// Passes are pure functions Graph -> Graph. The driver lists, disables, times, verifies and dumps them.
#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph.h"

namespace glim {

// values[old.index] is the value that took the old one's place; invalid where it is gone. Outputs, updates and leaves of the
// graph are carried over by the pass itself.
struct ValueMap {
  std::vector<ValueId> values;
  ValueId operator[](ValueId old) const { return old.valid() ? values[old.index] : ValueId{}; }
};
struct Rewritten {
  Graph graph;
  ValueMap map;
};

enum class Rematerialise : uint8_t { kNone, kSelective, kFull, kAuto };
// Rates that turn a Cost into seconds. Defaults: one NVIDIA H200, measured.
struct CostModel {
  double flops_per_second = 700e12;
  double bytes_per_second = 4.2e12;
  [[nodiscard]] double seconds(const Cost& cost) const {
    return std::max(cost.flops / flops_per_second, (cost.bytes_read + cost.bytes_written) / bytes_per_second);
  }
};
struct PassContext {
  CostModel cost_model;
  Rematerialise rematerialise = Rematerialise::kNone;
  size_t saved_bytes_budget = 0;  // kAuto: saved primals may take this much
};

using PassFn = Result<Rewritten> (*)(const Graph&, const PassContext&);
struct Pass {
  std::string_view name;
  PassFn run;
  std::string_view why_here;  // why the pass stands at this place of the list
};

struct PassReport {
  std::string name;
  double seconds = 0;  // without verification
  size_t nodes_before = 0, nodes_after = 0;
};
struct PassOptions {
  std::vector<std::string> disabled;
  std::string stop_after;                                                     // "" = run all
  std::function<void(std::string_view pass, const Graph& graph)> after_pass;  // dump hook
  std::vector<PassReport>* reports = nullptr;
};
// Runs the passes in order and verifies the graph after each one (a violation is a bug of the pass).
Result<Graph> run_passes(Graph graph, std::span<const Pass> passes, const PassContext& context, const PassOptions& options);

// Copies a graph node by node into a new one. What every pass is written with.
class Rewriter {
 public:
  explicit Rewriter(const Graph& from);
  Graph& to() { return to_; }
  // The new id of an old value (invalid for an invalid one); it must have been emitted or mapped.
  [[nodiscard]] ValueId operator[](ValueId old) const;
  [[nodiscard]] bool has(ValueId old) const { return map_.values[old.index].valid(); }
  void map(ValueId old, ValueId now) { map_.values[old.index] = now; }
  // What is emitted into to() from now on comes from where the old node came from.
  void set_origin_of(NodeId n);
  // Copies a node with its operands mapped, keeps its origin, and maps its outputs.
  NodeId copy(NodeId n);
  // Copies outputs and updates; leaves that were not copied so far are copied too, so that none is lost.
  Rewritten finish() &&;

 private:
  const Graph& from_;
  Graph to_;
  ValueMap map_;
};

}  // namespace glim
