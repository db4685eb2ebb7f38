#include "engine/pass.h"

#include <fmt/format.h>

#include <chrono>

#include "engine/verify.h"

namespace glim {

Result<Graph> run_passes(Graph graph, std::span<const Pass> passes, const PassContext& context, const PassOptions& options) {
  for (const Pass& pass : passes) {
    GLIM_CHECK(!pass.why_here.empty(), fmt::format("pass '{}' does not say why it stands where it does", pass.name));
    const bool disabled = std::find(options.disabled.begin(), options.disabled.end(), pass.name) != options.disabled.end();
    if (!disabled) {
      const auto start = std::chrono::steady_clock::now();
      const size_t nodes_before = graph.num_nodes();
      GLIM_ASSIGN(Rewritten rewritten, pass.run(graph, context));
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      graph = std::move(rewritten.graph);
      if (const Status verified = verify(graph); !verified) {
        report_bug(__FILE__, __LINE__, "verify", fmt::format("after pass '{}': {}", pass.name, verified.error().message));
      }
      if (options.reports != nullptr) {
        options.reports->push_back({std::string(pass.name), seconds, nodes_before, graph.num_nodes()});
      }
      if (options.after_pass) options.after_pass(pass.name, graph);
    }
    if (pass.name == options.stop_after) break;
  }
  return graph;
}

Rewriter::Rewriter(const Graph& from) : from_(from), to_(from.table()), map_{std::vector<ValueId>(from.num_values())} {}

ValueId Rewriter::operator[](ValueId old) const {
  if (!old.valid()) return {};
  const ValueId now = map_.values[old.index];
  GLIM_CHECK(now.valid(), "a pass used a value that it has not emitted");
  return now;
}

void Rewriter::set_origin_of(NodeId n) {
  Origin origin = from_.origin(n);
  origin.path = to_.intern(from_.text(origin.path));
  origin.file = to_.intern(from_.text(origin.file));
  to_.set_origin(origin);
}

NodeId Rewriter::copy(NodeId n) {
  set_origin_of(n);
  const ValueId first = from_.output(n);
  if (from_.is_leaf(n)) {
    const Leaf& leaf = from_.leaf(first);
    map(first, to_.add_leaf(leaf.kind, leaf.name, from_.type(first)));
    return to_.producer((*this)[first]);
  }
  std::vector<ValueId> operands;
  for (const ValueId v : from_.inputs(n)) operands.push_back((*this)[v]);
  const Result<NodeId> copied = to_.emit(from_.node(n).op, operands, from_.attr_words(n));
  GLIM_CHECK(bool(copied), copied.error().message);
  for (uint32_t k = 0; k < from_.node(n).num_outputs; ++k) map({first.index + k}, to_.output(*copied, k));
  return *copied;
}

Rewritten Rewriter::finish() && {
  for (const Leaf& leaf : from_.leaves()) {
    if (!has(leaf.value)) copy(from_.producer(leaf.value));
  }
  for (const NamedValue& output : from_.outputs()) to_.add_output(output.name, (*this)[output.value]);
  for (const StateUpdate& update : from_.updates()) to_.add_update((*this)[update.state], (*this)[update.next]);
  return {std::move(to_), std::move(map_)};
}

}  // namespace glim
