// Properties of the schedule and the memory plan on random programs of toy ops, run through the planned arenas (poisoned with
// NaN first) and compared with a run in which every value has memory of its own.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "engine/memory_plan.h"
#include "engine/tensor_view.h"
#include "engine/verify.h"

namespace glim {
namespace {

constexpr std::string_view kOut[] = {"out"};
constexpr OperandSpec kOne[] = {{"in"}}, kTwo[] = {{"in"}, {"other"}}, kMany[] = {{"in", false, true}};
constexpr AttrSpec kAxis[] = {integer_attr("axis", 0, "axis")};
struct AxisAttrs {
  int64_t axis;
};
Result<Types> same(const InferArgs& a) {
  if (a.in.size() > 1 && a.in[1] != nullptr && *a.in[1] != *a.in[0]) return invalid_argument("types differ");
  return Types{*a.in[0]};
}
Result<Types> halves(const InferArgs& a) {
  TensorType half = *a.in[0];
  int64_t& dim = half.shape.dims[static_cast<size_t>(a.attrs<AxisAttrs>().axis)];
  if (dim % 2 != 0) return invalid_argument("odd extent");
  dim /= 2;
  return Types{half, half};
}
Result<Types> joined(const InferArgs& a) {
  TensorType all = *a.in[0];
  const auto axis = static_cast<size_t>(a.attrs<AxisAttrs>().axis);
  for (size_t k = 1; k < a.in.size(); ++k) {
    if (a.in[k]->shape[1 - static_cast<int>(axis)] != all.shape[1 - static_cast<int>(axis)]) return invalid_argument("extents differ");
    all.shape.dims[axis] += a.in[k]->shape.dims[axis];
  }
  return Types{all};
}
Region half_region(const InferArgs& a, uint16_t k) {
  const auto axis = a.attrs<AxisAttrs>().axis;
  const int64_t at = k * a.in[0]->shape[static_cast<int>(axis)] / 2;
  return axis == 0 ? Region{at, 0} : Region{0, at};
}
Region part_region(const InferArgs& a, uint16_t k) {
  const auto axis = a.attrs<AxisAttrs>().axis;
  int64_t at = 0;
  for (uint16_t j = 0; j < k; ++j) at += a.in[j]->shape[static_cast<int>(axis)];
  return axis == 0 ? Region{at, 0} : Region{0, at};
}
Cost cost(const CostArgs&) { return {1, 1, 1, 512}; }
void no_kernel(const KernelArgs&) {}
std::vector<OpCase> no_cases() { return {}; }
template <AliasKind kKind, uint16_t kOperand>
AliasFact fact(const InferArgs&, uint16_t) {
  return {kKind, kOperand};
}

constexpr OpDef toy(std::string_view name, std::span<const OperandSpec> operands, InferFn infer, MemoryFacts memory,
                    Role role = Role::kNone, std::span<const AttrSpec> attrs = {}) {
  return {.name = name,
          .summary = "toy",
          .operands = operands,
          .outputs = kOut,
          .attrs = attrs,
          .diff = Diff::kNoVjp,
          .infer = infer,
          .cpu = no_kernel,
          .cost = cost,
          .memory = memory,
          .precision = Precision::kFollows,
          .role = role,
          .shard = Shard::kNone,
          .cases = no_cases};
}
constexpr OpDef kNegate = toy("negate", kOne, same, {fact<AliasKind::kInPlace, 0>});
constexpr OpDef kSum = toy("sum", kTwo, same, {fact<AliasKind::kInPlace, 0>}, Role::kAdd);
constexpr OpDef kFresh = toy("fresh", kTwo, same, {fact<AliasKind::kNone, 0>});
constexpr OpDef kAccumulate = toy("accumulate", kTwo, same, {fact<AliasKind::kMust, 1>});
constexpr OpDef kHalve = toy("halve", kOne, halves, {fact<AliasKind::kView, 0>, half_region}, Role::kSplit, kAxis);
constexpr OpDef kJoin = toy("join", kMany, joined, {fact<AliasKind::kAssemble, 0>, part_region}, Role::kConcat, kAxis);
constexpr OpDef kShip = toy("ship", kOne, same, {fact<AliasKind::kNone, 0>}, Role::kCollective);

const OpTable& toy_ops() {
  static const OpTable table = [] {
    OpTable all;
    for (const OpDef* def : {&kNegate, &kSum, &kFresh, &kAccumulate, &kHalve, &kJoin, &kShip}) {
      if (!all.add(*def)) std::abort();
    }
    return all;
  }();
  return table;
}

double& at(const TensorView& t, int64_t i) {
  if (t.type.shape.rank != 2) return t.as<double>()[i];
  return t.row<double>(i / t.type.shape[1])[i % t.type.shape[1]];
}

// The arithmetic of the toy ops; `runs` is false when the plan says that nothing needs to be done.
void run_node(const Graph& g, NodeId n, const std::vector<TensorView>& in, const std::vector<TensorView>& out) {
  const std::string_view name = g.def(n).name;
  if (name == "halve" || name == "join") {
    const bool is_join = name == "join";
    for (uint16_t k = 0; k < (is_join ? in.size() : out.size()); ++k) {
      const TensorView& part = is_join ? in[k] : out[k];
      const TensorView& whole = is_join ? out[0] : in[0];
      const Region region = g.region(n, k);
      for (int64_t i = 0; i < part.type.shape[0]; ++i) {
        for (int64_t j = 0; j < part.type.shape[1]; ++j) {
          double& a = part.row<double>(i)[j];
          double& b = whole.row<double>(i + region.row)[j + region.column];
          if (is_join)
            b = a;
          else
            a = b;
        }
      }
    }
    return;
  }
  for (int64_t i = 0; i < out[0].type.shape.numel(); ++i) {
    const double a = at(in[0], i), b = in.size() > 1 ? at(in[1], i) : 0;
    at(out[0], i) = name == "negate" ? -a : name == "sum" ? a + b : name == "fresh" ? a - 2 * b : name == "accumulate" ? b + 0.5 * a : a;
  }
}

Graph random_graph(std::mt19937& rng) {
  Graph g(toy_ops());
  const auto pick = [&](size_t n) { return static_cast<size_t>(rng() % n); };
  std::vector<ValueId> values;
  const int num_states = static_cast<int>(2 + pick(4));
  for (int k = 0; k < num_states; ++k) {
    const LeafKind kind = k % 2 == 0 ? LeafKind::kParameter : LeafKind::kGradient;
    values.push_back(g.add_leaf(kind, "state" + std::to_string(k), {DType::kF64, {4, pick(2) == 0 ? 4 : 8}}));
  }
  values.push_back(g.add_leaf(LeafKind::kInput, "input", {DType::kF64, {4, 8}}));
  const std::vector<ValueId> leaves = values;
  const std::string_view ops[] = {"negate", "sum", "fresh", "accumulate", "halve", "join", "ship"};
  const size_t num_nodes = 3 + pick(22);
  for (size_t tries = 0; tries < num_nodes * 3 && g.num_nodes() < leaves.size() + num_nodes; ++tries) {
    const std::string_view op = ops[pick(std::size(ops))];
    const OpDef& def = toy_ops()[*toy_ops().find(op)];
    std::vector<ValueId> in{values[pick(values.size())]};
    if (def.operands.size() == 2) in.push_back(values[pick(values.size())]);
    if (op == "join") {
      for (size_t k = pick(3); k-- > 0;) in.push_back(values[pick(values.size())]);
    }
    const Result<NodeId> n = def.attrs.empty() ? g.emit(*toy_ops().find(op), in, std::span<const uint32_t>{})
                                               : g.emit(*toy_ops().find(op), in, AxisAttrs{static_cast<int64_t>(pick(2))});
    if (!n || g.type(g.output(*n)).shape.numel() > 4096) continue;
    for (uint32_t k = 0; k < g.node(*n).num_outputs; ++k) values.push_back(g.output(*n, k));
  }
  for (int k = 0; k < num_states; ++k) {
    for (int tries = 0; tries < 6; ++tries) {
      const ValueId next = values[pick(values.size())];
      if (g.type(next) != g.type(leaves[static_cast<size_t>(k)])) continue;
      g.add_update(leaves[static_cast<size_t>(k)], next);
      break;
    }
  }
  for (int k = 0; k < 3; ++k) g.add_output("out" + std::to_string(k), values[pick(values.size())]);
  return g;
}

using Values = std::map<std::string, std::vector<double>>;

Values run_plainly(const Graph& g, const Values& leaves) {
  std::vector<std::vector<double>> memory(g.num_values());
  const auto view = [&](ValueId v) { return contiguous_view(memory[v.index].data(), g.type(v)); };
  for (uint32_t v = 0; v < g.num_values(); ++v) memory[v].resize(static_cast<size_t>(g.type({v}).shape.numel()));
  for (uint32_t n = 0; n < g.num_nodes(); ++n) {
    if (g.is_leaf(NodeId{n})) {
      memory[g.output({n}).index] = leaves.at(g.leaf(g.output({n})).name);
      continue;
    }
    std::vector<TensorView> in, out;
    for (const ValueId v : g.inputs({n})) in.push_back(view(v));
    for (uint32_t k = 0; k < g.node({n}).num_outputs; ++k) out.push_back(view(g.output({n}, k)));
    run_node(g, {n}, in, out);
  }
  Values result = leaves;
  for (const NamedValue& output : g.outputs()) result[output.name] = memory[output.value.index];
  for (const StateUpdate& update : g.updates()) result[g.leaf(update.state).name] = memory[update.next.index];
  return result;
}

struct Planned {
  Schedule schedule;
  LeafLayout layout;
  MemoryPlan plan;
};
Planned make_plan(const Graph& g) {
  Planned planned{make_schedule(g), {}, {}};
  const Graph* programs[] = {&g};
  planned.layout = make_leaf_layout(programs);
  planned.plan = plan_memory(g, planned.schedule, planned.layout);
  return planned;
}

void copy(std::array<std::vector<std::byte>, kNumArenas>& arenas, const PlannedCopy& copy) {
  const auto view = [&](const Slot& slot) {
    return TensorView{arenas[static_cast<size_t>(slot.arena)].data() + slot.offset, copy.type, slot.row_stride};
  };
  const TensorView from = view(copy.from), to = view(copy.to);
  for (int64_t i = 0; i < copy.type.shape.numel(); ++i) at(to, i) = at(from, i);
}

Values run_planned(const Graph& g, const Planned& planned, const Values& leaves) {
  const MemoryPlan& plan = planned.plan;
  std::array<std::vector<std::byte>, kNumArenas> arenas;
  for (size_t a = 0; a < kNumArenas; ++a) {
    arenas[a].resize(plan.arena_bytes[a]);
    const double poison = std::numeric_limits<double>::quiet_NaN();
    for (size_t k = 0; k + 8 <= arenas[a].size(); k += 8) std::memcpy(arenas[a].data() + k, &poison, 8);
  }
  const auto view = [&](ValueId v) {
    const Slot& slot = plan.slots[v.index];
    return TensorView{arenas[static_cast<size_t>(slot.arena)].data() + slot.offset, g.type(v), slot.row_stride};
  };
  const auto read = [&](ValueId v) {
    std::vector<double> values(static_cast<size_t>(g.type(v).shape.numel()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = at(view(v), static_cast<int64_t>(i));
    return values;
  };
  for (const Leaf& leaf : g.leaves()) std::memcpy(view(leaf.value).data, leaves.at(leaf.name).data(), g.type(leaf.value).bytes());
  for (const ScheduleStep& step : planned.schedule.steps) {
    for (const MemoryPlan::Before& before : plan.copies_before) {
      if (before.node == step.node) copy(arenas, before.copy);
    }
    if (!plan.node_runs[step.node.index]) continue;
    std::vector<TensorView> in, out;
    for (const ValueId v : g.inputs(step.node)) in.push_back(view(v));
    for (uint32_t k = 0; k < g.node(step.node).num_outputs; ++k) out.push_back(view(g.output(step.node, k)));
    run_node(g, step.node, in, out);
  }
  Values result;
  for (const NamedValue& output : g.outputs()) result[output.name] = read(output.value);
  for (const PlannedCopy& each : plan.copies_after) copy(arenas, each);
  for (const Leaf& leaf : g.leaves()) result[leaf.name] = read(leaf.value);
  return result;
}

TEST(Plan, RandomProgramsComputeTheSameThroughArenas) {
  std::mt19937 rng(20261130);
  size_t num_in_place = 0, num_views = 0, num_copies = 0, num_saved_bytes = 0;
  for (int round = 0; round < 1000; ++round) {
    const Graph g = random_graph(rng);
    ASSERT_TRUE(verify(g)) << verify(g).error().message;
    Values leaves;
    for (const Leaf& leaf : g.leaves()) {
      std::vector<double>& data = leaves[leaf.name];
      for (int64_t i = 0; i < g.type(leaf.value).shape.numel(); ++i) data.push_back(std::uniform_real_distribution<>(1, 2)(rng));
    }
    const Planned planned = make_plan(g);
    const Values expected = run_plainly(g, leaves), actual = run_planned(g, planned, leaves);
    for (const auto& [name, values] : expected) ASSERT_EQ(values, actual.at(name)) << "round " << round << ", " << name;
    size_t total = 0;
    for (uint32_t n = 0; n < g.num_nodes(); ++n) {
      num_views += planned.plan.node_runs[n] ? 0 : 1;
      for (uint16_t k = 0; !g.is_leaf(NodeId{n}) && k < g.node({n}).num_outputs; ++k) {
        total += align_up(g.type(g.output({n}, k)).bytes());
        const AliasFact fact = g.alias({n}, k);
        if (fact.kind != AliasKind::kInPlace) continue;
        const Slot &from = planned.plan.slots[g.inputs({n})[fact.operand].index], &to = planned.plan.slots[g.output({n}, k).index];
        num_in_place += from.arena == to.arena && from.offset == to.offset ? 1 : 0;
      }
    }
    num_copies += planned.plan.copies_after.size();
    const size_t used = planned.plan.bytes(Arena::kActivations) + planned.plan.bytes(Arena::kCommunication);
    EXPECT_GE(planned.plan.bytes(Arena::kActivations) + planned.plan.bytes(Arena::kCommunication), planned.plan.live_bytes_peak / 2);
    EXPECT_LE(used, total);
    num_saved_bytes += total - used;
  }
  // The random programs really exercise what they are for.
  EXPECT_GT(num_in_place, 500U);
  EXPECT_GT(num_views, 1000U);
  EXPECT_GT(num_copies, 500U);
  EXPECT_GT(num_saved_bytes, 1000U * 512U);
}

TEST(Schedule, RandomProgramsKeepItsLaws) {
  std::mt19937 rng(7);
  for (int round = 0; round < 1000; ++round) {
    const Graph g = random_graph(rng);
    const Schedule s = make_schedule(g);
    ASSERT_EQ(s.steps.size() + g.leaves().size(), g.num_nodes());
    // What each stream is known to have seen of the other: the newest position covered by a wait.
    std::vector<uint32_t> position_of_event(s.num_events);
    for (uint32_t p = 0; p < s.steps.size(); ++p) {
      if (s.steps[p].signal != ~0U) position_of_event[s.steps[p].signal] = p;
    }
    int64_t seen[2] = {-1, -1};
    for (uint32_t p = 0; p < s.steps.size(); ++p) {
      const ScheduleStep& step = s.steps[p];
      ASSERT_EQ(s.position[step.node.index], p);
      for (const uint32_t event : s.waits_of(step)) {
        ASSERT_LT(position_of_event[event], p);
        ASSERT_NE(s.steps[position_of_event[event]].stream, step.stream);
        seen[static_cast<size_t>(step.stream)] = std::max<int64_t>(seen[static_cast<size_t>(step.stream)], position_of_event[event]);
      }
      for (const ValueId v : g.inputs(step.node)) {
        if (g.is_leaf(v)) continue;
        const uint32_t from = s.position[g.producer(v).index];
        ASSERT_LT(from, p);
        if (s.steps[from].stream != step.stream) {
          ASSERT_GE(seen[static_cast<size_t>(step.stream)], from);
        }
      }
    }
  }
}

TEST(Schedule, PutsTheWriterOfAStateAfterItsReaders) {
  Graph g(toy_ops());
  const ValueId w = g.add_leaf(LeafKind::kParameter, "w", {DType::kF64, {4, 4}}),
                x = g.add_leaf(LeafKind::kInput, "x", {DType::kF64, {4, 4}});
  const ValueId next_operands[] = {w, x};
  const ValueId next = g.output(*g.emit(*toy_ops().find("sum"), next_operands, std::span<const uint32_t>{}));
  const ValueId late_operands[] = {x, w};
  const ValueId late = g.output(*g.emit(*toy_ops().find("fresh"), late_operands, std::span<const uint32_t>{}));
  g.add_update(w, next);
  g.add_output("late", late);
  const Schedule s = make_schedule(g);
  EXPECT_LT(s.position[g.producer(late).index], s.position[g.producer(next).index]);
  const Planned planned = make_plan(g);
  EXPECT_EQ(planned.plan.slots[next.index].arena, Arena::kParameters);
  EXPECT_TRUE(planned.plan.copies_after.empty());
}

TEST(Plan, PackedWeightsAreAdjacentAndCostNothing) {
  Graph g(toy_ops());
  const TensorType type{DType::kF64, {3, 5}};  // 120 bytes: not a multiple of the alignment
  const ValueId other = g.add_leaf(LeafKind::kParameter, "other", type);
  const ValueId q = g.add_leaf(LeafKind::kParameter, "q", type), between = g.add_leaf(LeafKind::kParameter, "between", type);
  const ValueId k = g.add_leaf(LeafKind::kParameter, "k", type);
  const ValueId parts[] = {q, k};
  const NodeId join = *g.emit(*toy_ops().find("join"), parts, AxisAttrs{0});
  g.add_output("packed", g.output(join));
  const Planned planned = make_plan(g);
  EXPECT_FALSE(planned.plan.node_runs[join.index]);
  EXPECT_EQ(planned.layout.find("k")->offset, planned.layout.find("q")->offset + type.bytes());
  EXPECT_EQ(planned.plan.slots[g.output(join).index].offset, planned.layout.find("q")->offset);
  EXPECT_EQ(planned.layout.find("q")->offset % kAlignment, 0U);
  EXPECT_EQ(planned.plan.bytes(Arena::kActivations), 0U);
  (void)other;
  (void)between;
}

TEST(Plan, AnAssemblyOfAViewDoesNotOverwriteTheRestOfItsSource) {
  Graph g(toy_ops());
  const ValueId x = g.add_leaf(LeafKind::kInput, "x", {DType::kF64, {2, 4}});
  const auto emit = [&](std::string_view op, std::vector<ValueId> in) {
    return *g.emit(*toy_ops().find(op), in, std::span<const uint32_t>{});
  };
  const ValueId y_operands[] = {g.output(emit("negate", {x}))};
  const NodeId halve = *g.emit(*toy_ops().find("halve"), y_operands, AxisAttrs{1});
  const ValueId z = g.output(emit("fresh", {g.output(halve, 0), g.output(halve, 0)}));
  const ValueId parts[] = {g.output(halve, 0), z};
  g.add_output("joined", g.output(*g.emit(*toy_ops().find("join"), parts, AxisAttrs{1})));
  g.add_output("rest", g.output(emit("negate", {g.output(halve, 1)})));
  const Values leaves{{"x", {1, 2, 3, 4, 5, 6, 7, 8}}};
  EXPECT_EQ(run_planned(g, make_plan(g), leaves), run_plainly(g, leaves));
}

TEST(Plan, SwappedStatesGoThroughTheWorkspace) {
  Graph g(toy_ops());
  const TensorType type{DType::kF64, {2, 2}};
  const ValueId a = g.add_leaf(LeafKind::kParameter, "a", type), b = g.add_leaf(LeafKind::kParameter, "b", type);
  g.add_update(a, b);
  g.add_update(b, a);
  const Values result = run_planned(g, make_plan(g), {{"a", {1, 2, 3, 4}}, {"b", {5, 6, 7, 8}}});
  EXPECT_EQ(result.at("a"), (std::vector<double>{5, 6, 7, 8}));
  EXPECT_EQ(result.at("b"), (std::vector<double>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace glim
