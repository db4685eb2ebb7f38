#include "engine/passes/pack_linears.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "engine/analysis/consumers.h"

namespace glim {
namespace {

constexpr size_t kMaxParts = 8;  // what a split can have

// What siblings have in common: input, instance, dtype of the weight, attributes.
using Key = std::tuple<ValueId, uint32_t, DType, std::vector<uint32_t>>;

ValueId weight(const Graph& graph, NodeId n) { return graph.inputs(n)[1]; }

bool packable(const Graph& graph, NodeId n, const Consumers& consumers) {
  if (graph.is_leaf(n) || graph.def(n).role != Role::kLinear) return false;
  const std::span<const ValueId> in = graph.inputs(n);
  if (in.size() < 2 || std::any_of(in.begin() + 2, in.end(), [](ValueId v) { return v.valid(); })) return false;  // a bias
  const ValueId w = in[1];
  return graph.is_leaf(w) && graph.leaf(w).kind == LeafKind::kParameter && graph.type(w).shape.rank == 2 && graph.type(w).shape[0] > 0 &&
         consumers[w] == 1;
}

// Groups of at least two siblings, each at most kMaxParts long, in tape order.
std::vector<std::vector<NodeId>> find_groups(const Graph& graph) {
  const Consumers consumers = count_consumers(graph);
  std::map<Key, std::vector<NodeId>> siblings;
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    if (!packable(graph, {n}, consumers)) continue;
    const std::span<const uint32_t> words = graph.attr_words({n});
    siblings[{graph.inputs({n})[0], graph.origin({n}).path, graph.type(weight(graph, {n})).dtype, {words.begin(), words.end()}}].push_back(
        {n});
  }
  std::vector<std::vector<NodeId>> groups;
  for (const auto& [key, nodes] : siblings) {
    for (size_t begin = 0; begin + 1 < nodes.size(); begin += kMaxParts) {
      groups.emplace_back(nodes.begin() + static_cast<std::ptrdiff_t>(begin),
                          nodes.begin() + static_cast<std::ptrdiff_t>(std::min(begin + kMaxParts, nodes.size())));
    }
  }
  return groups;
}

void set_attr(const OpDef& def, std::span<uint32_t> words, std::string_view name, int64_t value) {
  const auto spec = std::find_if(def.attrs.begin(), def.attrs.end(), [&](const AttrSpec& s) { return s.name == name; });
  GLIM_CHECK(spec != def.attrs.end() && spec->kind == AttrKind::kInteger,
             fmt::format("op '{}' has a role that needs an integer attribute '{}'", def.name, name));
  set_integer(words, static_cast<size_t>(spec - def.attrs.begin()), value);
}

NodeId emit(Graph& to, OpId op, std::span<const ValueId> operands, std::span<const uint32_t> words) {
  const Result<NodeId> node = to.emit(op, operands, words);
  GLIM_CHECK(bool(node), node.error().message);
  return *node;
}

// Emits a group where its first linear stood.
void pack(const Graph& graph, std::span<const NodeId> group, Rewriter& rewriter) {
  const OpTable& table = graph.table();
  const OpId concat = table.with_role(Role::kConcat), split = table.with_role(Role::kSplit);
  std::vector<uint32_t> concat_words = default_words(table[concat].attrs), split_words = default_words(table[split].attrs);
  set_attr(table[concat], concat_words, "axis", 0);
  set_attr(table[split], split_words, "axis", 1);
  std::vector<ValueId> weights;
  for (size_t k = 0; k < group.size(); ++k) {
    const ValueId w = weight(graph, group[k]);
    if (!rewriter.has(w)) rewriter.copy(graph.producer(w));  // leaves may be declared as late as their first use
    weights.push_back(rewriter[w]);
    set_attr(table[split], split_words, fmt::format("size{}", k), graph.type(w).shape[0]);
  }
  rewriter.set_origin_of(group[0]);
  Graph& to = rewriter.to();
  const ValueId packed = to.output(emit(to, concat, weights, concat_words));
  const ValueId operands[] = {rewriter[graph.inputs(group[0])[0]], packed};
  const ValueId product[] = {to.output(emit(to, graph.node(group[0]).op, operands, graph.attr_words(group[0])))};
  const NodeId parts = emit(to, split, product, split_words);
  for (uint32_t k = 0; k < group.size(); ++k) rewriter.map(graph.output(group[k]), to.output(parts, k));
}

}  // namespace

Result<Rewritten> pack_linears(const Graph& graph, const PassContext&) {
  const std::vector<std::vector<NodeId>> groups = find_groups(graph);
  constexpr uint32_t kNoGroup = UINT32_MAX;
  std::vector<uint32_t> group_of(graph.num_nodes(), kNoGroup);
  for (uint32_t g = 0; g < groups.size(); ++g) {
    for (const NodeId n : groups[g]) group_of[n.index] = g;
  }
  Rewriter rewriter(graph);
  for (uint32_t index = 0; index < graph.num_nodes(); ++index) {
    const NodeId n{index};
    if (rewriter.has(graph.output(n))) continue;
    if (group_of[index] == kNoGroup)
      rewriter.copy(n);
    else
      pack(graph, groups[group_of[index]], rewriter);
  }
  return std::move(rewriter).finish();
}

}  // namespace glim
