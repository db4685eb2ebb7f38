#pragma once
// What the rematerialisation tests share: a toy op table whose costs are attributes, graphs on it, their text, and an interpreter.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/analysis/backward_region.h"
#include "engine/passes/rematerialise.h"

namespace glim::rematerialise_toy {

// ---- the toy table: f64 vectors; work(in...) -> 1 to 3 outputs of `size` elements
struct WorkAttrs {
  double tag, flops, bytes;
  int64_t size, num_outputs;
};
struct ViewAttrs {
  int64_t begin, length;
};
inline constexpr OperandSpec kAny[] = {{"in", true, true}};
inline constexpr OperandSpec kOne[] = {{"in"}};
inline constexpr OperandSpec kTwo[] = {{"accumulator"}, {"in"}};
inline constexpr std::string_view kOut[] = {"out"};
inline constexpr AttrSpec kWorkAttrs[] = {real_attr("tag", 0, ""), real_attr("flops", 0, ""), real_attr("bytes", 0, ""),
                                          integer_attr("size", 1, ""), integer_attr("num_outputs", 1, "")};
inline constexpr AttrSpec kViewAttrs[] = {integer_attr("begin", 0, ""), integer_attr("length", 1, "")};

inline TensorType vector_type(int64_t size) { return {DType::kF64, Shape{size}}; }
inline Result<Types> infer_work(const InferArgs& a) {
  const auto attrs = a.attrs<WorkAttrs>();
  return Types(static_cast<size_t>(attrs.num_outputs), vector_type(attrs.size));
}
inline Result<Types> infer_view(const InferArgs& a) { return Types{vector_type(a.attrs<ViewAttrs>().length)}; }
inline Result<Types> infer_same(const InferArgs& a) { return Types{*a.in[0]}; }
inline Cost work_cost(const CostArgs& a) { return {a.attrs<WorkAttrs>().flops, a.attrs<WorkAttrs>().bytes, 0, 0}; }
inline Cost unit_cost(const CostArgs&) { return {1, 1, 0, 0}; }
inline AliasFact own(const InferArgs&, uint16_t) { return {}; }
inline AliasFact view_of(const InferArgs&, uint16_t) { return {AliasKind::kView, 0}; }
inline AliasFact over(const InferArgs&, uint16_t) { return {AliasKind::kMust, 0}; }
inline void no_kernel(const KernelArgs&) {}
inline std::vector<OpCase> no_cases() { return {}; }

constexpr OpDef toy(std::string_view name, std::span<const OperandSpec> operands, std::span<const AttrSpec> attrs, InferFn infer,
                    CostFn cost, AliasFact (*alias)(const InferArgs&, uint16_t), Role role = Role::kNone) {
  return {.name = name,
          .summary = "toy",
          .operands = operands,
          .outputs = kOut,
          .attrs = attrs,
          .diff = Diff::kNoVjp,
          .infer = infer,
          .cpu = no_kernel,
          .cost = cost,
          .memory = {alias},
          .precision = Precision::kFollows,
          .role = role,
          .shard = Shard::kNone,
          .cases = no_cases};
}
inline constexpr OpDef kWork = toy("work", kAny, kWorkAttrs, infer_work, work_cost, own);
inline constexpr OpDef kView = toy("view", kOne, kViewAttrs, infer_view, unit_cost, view_of);
inline constexpr OpDef kAccumulate = toy("accumulate", kTwo, {}, infer_same, unit_cost, over);
inline constexpr OpDef kReduce = toy("reduce", kOne, {}, infer_same, unit_cost, own, Role::kCollective);

inline const OpTable& table() {
  static const OpTable instance = [] {
    OpTable ops;
    for (const OpDef* def : {&kWork, &kView, &kAccumulate, &kReduce}) GLIM_CHECK(bool(ops.add(*def)), "toy table");
    return ops;
  }();
  return instance;
}

// ---- building. Seconds are max(flops, bytes) with the rates used here.
template <class Attrs>
inline NodeId emit(Graph& g, std::string_view op, const std::vector<ValueId>& in, const Attrs& attrs) {
  const Result<NodeId> node = g.emit(*table().find(op), in, attrs);
  GLIM_CHECK(bool(node), node.error().message);
  return *node;
}
struct NoAttrs {};
inline ValueId work(Graph& g, double tag, const std::vector<ValueId>& in, double seconds, int64_t size, bool expensive = false) {
  return g.output(emit(g, "work", in, WorkAttrs{tag, seconds, expensive ? seconds / 100 : seconds, size, 1}));
}
inline ValueId view(Graph& g, ValueId in, int64_t begin, int64_t length) {
  return g.output(emit(g, "view", {in}, ViewAttrs{begin, length}));
}
inline void enter(Graph& g, std::string_view path) {
  Origin origin;
  origin.path = g.intern(path);
  g.set_origin(origin);
}
inline PassContext context(Rematerialise policy, size_t budget = 0) { return {{1, 1}, policy, budget}; }
inline Rewritten run(const Graph& g, Rematerialise policy, size_t budget = 0) {
  Result<Rewritten> rewritten = rematerialise(g, context(policy, budget));
  GLIM_CHECK(bool(rewritten), "rematerialise never fails");
  return std::move(*rewritten);
}

// "2(x) 3(2)": every node in tape order as label(operand labels): leaves by name, work by tag, outputs past the first as tag.k
inline std::string text(const Graph& g) {
  std::string all;
  std::vector<std::string> labels(g.num_values());
  for (uint32_t n = 0; n < g.num_nodes(); ++n) {
    const ValueId first = g.output({n});
    const std::string op(g.def({n}).name);
    std::string label = g.is_leaf(NodeId{n}) ? g.leaf(first).name : op == "work" ? fmt::format("{}", g.attrs<WorkAttrs>({n}).tag) : op;
    for (uint32_t k = 0; k < g.node({n}).num_outputs; ++k) labels[first.index + k] = k == 0 ? label : fmt::format("{}.{}", label, k);
    if (g.is_leaf(NodeId{n})) continue;
    std::string operands;
    for (const ValueId v : g.inputs({n})) operands += (operands.empty() ? "" : ",") + labels[v.index];
    all += fmt::format("{}{}({})", all.empty() ? "" : " ", label, operands);
  }
  return all;
}

// Nodes of a stack whose result (or a view of it) a forward node of another instance reads: these never run again but with kFull.
inline std::vector<bool> boundaries(const Graph& g) {
  std::vector<bool> found(g.num_nodes(), false);
  const BackwardRegion backward = find_backward_region(g);
  const auto path = [&](NodeId n) { return g.text(g.origin(n).path); };
  for (uint32_t n = 0; n < g.num_nodes(); ++n) {
    if (backward.nodes[n]) continue;
    for (ValueId v : g.inputs({n})) {
      while (g.def(g.producer(v)).name == "view") v = g.inputs(g.producer(v))[0];
      const NodeId producer = g.producer(v);
      if (!g.is_leaf(v) && path(producer) != path({n}) && path(producer).find('.') != std::string_view::npos) found[producer.index] = true;
    }
  }
  return found;
}

// ---- the interpreter
using Numbers = std::vector<double>;
inline std::map<std::string, Numbers> evaluate(const Graph& g) {
  std::vector<Numbers> values(g.num_values());
  for (uint32_t n = 0; n < g.num_nodes(); ++n) {
    const ValueId first = g.output({n});
    const std::string_view op = g.def({n}).name;
    for (uint32_t k = 0; k < g.node({n}).num_outputs; ++k) {
      Numbers& out = values[first.index + k];
      out.resize(static_cast<size_t>(g.type(first).shape.numel()));
      for (size_t i = 0; i < out.size(); ++i) {
        if (op == "leaf") {
          out[i] = std::sin(static_cast<double>(std::hash<std::string>{}(g.leaf(first).name) % 1000 + i));
        } else if (op == "work") {
          double sum = g.attrs<WorkAttrs>({n}).tag + k + 0.1 * static_cast<double>(i);
          double weight = 1;
          for (const ValueId v : g.inputs({n})) sum += (weight += 1) * values[v.index][i % values[v.index].size()];
          out[i] = std::sin(sum);
        } else if (op == "view") {
          out[i] = values[g.inputs({n})[0].index][i + static_cast<size_t>(g.attrs<ViewAttrs>({n}).begin)];
        } else {
          out[i] = values[g.inputs({n})[0].index][i] + (op == "accumulate" ? values[g.inputs({n})[1].index][i] : 1);
        }
      }
    }
  }
  std::map<std::string, Numbers> results;
  for (const NamedValue& output : g.outputs()) results[output.name] = values[output.value.index];
  for (const StateUpdate& update : g.updates()) results["next " + g.leaf(update.state).name] = values[update.next.index];
  return results;
}

// ---- layers: x_i+1 = x_i + branch(x_i), the backward pass of each reads everything inside
inline constexpr double kLinearSeconds = 200, kCheapSeconds = 3;
inline Graph layered(int num_layers, int num_inner, double spread = 0) {
  Graph g(table());
  ValueId x = work(g, 1, {g.add_leaf(LeafKind::kInput, "tokens", vector_type(8))}, 1, 8);
  const ValueId w = g.add_leaf(LeafKind::kParameter, "w", vector_type(8));
  struct Forward {
    ValueId value;
    std::vector<ValueId> in;
    uint32_t path;
  };
  std::vector<Forward> tape;
  for (int layer = 0; layer < num_layers; ++layer) {
    enter(g, fmt::format("decoder.{}", layer));
    const ValueId residual = x;
    for (int k = 0; k + 1 < num_inner; ++k) {
      const bool expensive = k % 5 == 1;
      const std::vector<ValueId> in = expensive ? std::vector{x, w} : k % 7 == 3 ? std::vector{x, residual} : std::vector{x};
      x = work(g, 1000 + layer * 100 + k, in, (expensive ? kLinearSeconds : kCheapSeconds) * (1 + spread * ((layer * 31 + k * 17) % 23)),
               8 + 8 * (k % 4 == 2), expensive);
      tape.push_back({x, in, g.current_origin().path});
    }
    const std::vector<ValueId> in{residual, x};
    x = work(g, 1000 + layer * 100 + num_inner, in, kCheapSeconds, 8);
    tape.push_back({x, in, g.current_origin().path});
  }
  enter(g, "head");
  g.add_output("loss", work(g, 2, {x, w}, 5, 8));
  ValueId ct = work(g, 3, {g.add_leaf(LeafKind::kSeed, "seed", vector_type(8))}, 1, 8);
  ct = work(g, 4, {ct, x, w}, 1, 8);
  for (size_t k = tape.size(); k-- > 0;) {
    Origin origin;
    origin.path = tape[k].path;
    origin.is_vjp = true;
    g.set_origin(origin);
    std::vector<ValueId> in{ct};
    in.insert(in.end(), tape[k].in.begin(), tape[k].in.end());
    if (k % 3 == 0) in.push_back(tape[k].value);
    ct = work(g, -1000 - static_cast<double>(k), in, 1, 8);
  }
  g.add_output("ct", ct);
  return g;
}

struct RandomGraph {
  Graph g{table()};
  uint32_t first_backward = 0;
};
// Forward: work with one to three operands and outputs, views, sometimes collectives and accumulations. Backward: like a tape
// walked in reverse, each node reads a cotangent and some of what its forward node read or made.
inline RandomGraph random_graph(std::mt19937& rng, int num_forward, bool with_pinned) {
  const auto roll = [&](int below) { return static_cast<int>(rng() % static_cast<uint32_t>(below)); };
  RandomGraph result;
  Graph& g = result.g;
  std::vector<ValueId> values{g.add_leaf(LeafKind::kInput, "x", vector_type(6)), g.add_leaf(LeafKind::kParameter, "w", vector_type(6))};
  const ValueId state = g.add_leaf(LeafKind::kOptimizer, "state", vector_type(6));
  const size_t first = g.num_nodes();
  const bool is_stack = roll(2) == 0;
  for (int k = 0; k < num_forward; ++k) {
    enter(g, is_stack ? fmt::format("stack.{}", k / 4) : "block");
    const auto any = [&] {
      return values[values.size() - 1 - static_cast<size_t>(roll(static_cast<int>(std::min<size_t>(values.size(), 6))))];
    };
    std::vector<ValueId> in{any()};
    while (roll(2) == 0 && in.size() < 3) in.push_back(any());
    if (with_pinned && roll(8) == 0) in[0] = state;
    const int kind = roll(with_pinned ? 8 : 6);
    NodeId n;
    if (kind == 0 && g.type(in[0]).shape[0] > 2)
      n = emit(g, "view", {in[0]}, ViewAttrs{1, g.type(in[0]).shape[0] - 2});
    else if (kind == 6)
      n = emit(g, "reduce", {in[0]}, NoAttrs{});
    else if (kind == 7)
      n = emit(g, "accumulate", {work(g, 500 + k, {in[0]}, 1 + roll(9), 6), work(g, 600 + k, in, 1 + roll(9), 6)}, NoAttrs{});
    else {
      const double seconds = roll(3) == 0 ? 40 + roll(200) : 1 + roll(20);
      n = emit(g, "work", in,
               WorkAttrs{10.0 + k, seconds, seconds > 40 ? seconds / 100 : seconds, 3 + roll(12), kind == 1 ? 1 + roll(3) : 1});
    }
    for (uint32_t o = 0; o < g.node(n).num_outputs; ++o) values.push_back(g.output(n, o));
  }
  const size_t last = g.num_nodes();
  g.add_output("loss", work(g, 1, {values.back(), values[values.size() - 2]}, 1, 2));
  if (with_pinned) g.add_update(state, work(g, 2, {state, values[values.size() - 2]}, 1, 6));
  const ValueId seed = g.add_leaf(LeafKind::kSeed, "seed", vector_type(5));
  result.first_backward = static_cast<uint32_t>(g.num_nodes());
  ValueId ct = work(g, 3, {seed}, 1, 5);
  for (size_t n = last; n-- > first;) {
    const NodeId node{static_cast<uint32_t>(n)};
    const auto overwritten = [&](ValueId v) {  // what an accumulation has taken must not be read any more
      for (uint32_t m = 0; m < last; ++m) {
        if (g.def({m}).name == "accumulate" && g.inputs({m})[0] == v) return true;
      }
      return false;
    };
    std::vector<ValueId> in{ct};
    for (const ValueId v : std::vector<ValueId>(g.inputs(node).begin(), g.inputs(node).end())) {
      if (roll(2) == 0 && !overwritten(v)) in.push_back(v);
    }
    const ValueId out = g.output(node, static_cast<uint32_t>(roll(g.node(node).num_outputs)));
    if (roll(4) == 0 && !overwritten(out)) in.push_back(out);
    ct = work(g, -static_cast<double>(n), in, 1, 5);
    if (roll(6) == 0) g.add_output(fmt::format("ct{}", n), ct);
  }
  g.add_output("ct", ct);
  return result;
}

}  // namespace glim::rematerialise_toy
