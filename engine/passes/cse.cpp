#include "engine/passes/cse.h"

#include <algorithm>
#include <unordered_map>

namespace glim {
namespace {

bool mergeable(const Graph& graph, NodeId n) {
  if (graph.is_leaf(n) || graph.def(n).role == Role::kCollective) return false;
  for (uint16_t k = 0; k < graph.node(n).num_outputs; ++k) {
    if (graph.alias(n, k).kind == AliasKind::kMust) return false;
  }
  return true;
}

struct Expression {
  OpId op;
  std::vector<ValueId> operands;  // of the new graph
  std::span<const uint32_t> attr_words;
  bool operator==(const Expression& other) const {
    return op == other.op && operands == other.operands &&
           std::equal(attr_words.begin(), attr_words.end(), other.attr_words.begin(), other.attr_words.end());
  }
};

struct ExpressionHash {
  size_t operator()(const Expression& e) const {
    uint64_t hash = 14695981039346656037u;  // FNV-1a over 32-bit words
    const auto mix = [&hash](uint32_t word) { hash = (hash ^ word) * 1099511628211u; };
    mix(e.op.index);
    for (const ValueId v : e.operands) mix(v.index);
    for (const uint32_t word : e.attr_words) mix(word);
    return static_cast<size_t>(hash ^ (hash >> 32));
  }
};

}  // namespace

Result<Rewritten> cse(const Graph& graph, const PassContext&) {
  Rewriter rewriter(graph);
  std::unordered_map<Expression, NodeId, ExpressionHash> first;  // the old node whose copy stands for an expression
  for (uint32_t index = 0; index < graph.num_nodes(); ++index) {
    const NodeId n{index};
    if (mergeable(graph, n)) {
      Expression expression{graph.node(n).op, {}, graph.attr_words(n)};
      for (const ValueId v : graph.inputs(n)) expression.operands.push_back(rewriter[v]);
      const auto [entry, is_new] = first.try_emplace(std::move(expression), n);
      if (!is_new) {
        for (uint32_t k = 0; k < graph.node(n).num_outputs; ++k) rewriter.map(graph.output(n, k), rewriter[graph.output(entry->second, k)]);
        continue;
      }
    }
    rewriter.copy(n);
  }
  return std::move(rewriter).finish();
}

}  // namespace glim
