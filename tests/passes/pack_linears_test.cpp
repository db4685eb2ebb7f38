#include "engine/passes/pack_linears.h"

#include "tests/passes/golden.h"
#include "tests/toy_ops.h"

namespace glim {
namespace {

const std::string kInput = "%0 = input \"x\" : f32[5,3]\n";

void expect_kept(const std::string& text) { expect_unchanged(pack_linears, toy::table(), kInput + text); }

TEST(PackLinears, QueryKeyValueGate) {
  expect_rewrite(pack_linears, toy::table(),
                 kInput +
                     "%1 = parameter \"q\" : f32[4,3]\n"
                     "%2 = parameter \"k\" : f32[2,3]\n"
                     "%3 = parameter \"v\" : f32[2,3]\n"
                     "%4 = linear(%0, %1)\n"
                     "%5 = linear(%0, %2)\n"
                     "%6 = add(%5, %5)\n"
                     "%7 = linear(%0, %3)\n"
                     "%8 = parameter \"gate\" : f32[4,3]\n"  // declared late
                     "%9 = linear(%0, %8)\n"
                     "output \"a\" = %4\noutput \"b\" = %6\noutput \"c\" = %7\noutput \"d\" = %9\n",
                 kInput +
                     "%1 = parameter \"q\" : f32[4,3]\n"
                     "%2 = parameter \"k\" : f32[2,3]\n"
                     "%3 = parameter \"v\" : f32[2,3]\n"
                     "%4 = parameter \"gate\" : f32[4,3]\n"
                     "%5 = concat(%1, %2, %3, %4) {axis=0} : f32[12,3]\n"
                     "%6 = linear(%0, %5, _) : f32[5,12]\n"
                     "%7, %8, %9, %10 = split(%6) {axis=1, size0=4, size1=2, size2=2, size3=4} : f32[5,4], f32[5,2], f32[5,2], f32[5,4]\n"
                     "%11 = add(%8, %8) : f32[5,2]\n"
                     "output \"a\" = %7\noutput \"b\" = %11\noutput \"c\" = %9\noutput \"d\" = %10\n");
}

TEST(PackLinears, GateUpKeepsAttributesAndOrigin) {
  Graph graph(toy::table());
  const ValueId x = graph.add_leaf(LeafKind::kInput, "x", {DType::kF32, {5, 3}});
  graph.set_origin({graph.intern("decoder.7"), graph.intern("m.toml"), 4, 2});
  const uint32_t wide[] = {1, 0};
  for (const char* name : {"gate", "up"}) {
    const ValueId in[] = {x, graph.add_leaf(LeafKind::kParameter, name, {DType::kF32, {6, 3}})};
    graph.add_output(name, graph.output(*graph.emit(*toy::table().find("linear"), in, std::span<const uint32_t>(wide))));
  }
  const Result<Rewritten> packed = pack_linears(graph, {});
  EXPECT_EQ(print(packed->graph, {.origins = true}),
            kInput +
                "%1 = parameter \"gate\" : f32[6,3]  // decoder.7 (m.toml:4:2)\n"
                "%2 = parameter \"up\" : f32[6,3]  // decoder.7 (m.toml:4:2)\n"
                "%3 = concat(%1, %2) {axis=0} : f32[12,3]  // decoder.7 (m.toml:4:2)\n"
                "%4 = linear(%0, %3, _) {wide=true} : f32[5,12]  // decoder.7 (m.toml:4:2)\n"
                "%5, %6 = split(%4) {axis=1, size0=6, size1=6} : f32[5,6], f32[5,6]  // decoder.7 (m.toml:4:2)\n"
                "output \"gate\" = %5\noutput \"up\" = %6\n");
}

const std::string kTwoWeights = "%1 = parameter \"a\" : f32[4,3]\n%2 = parameter \"b\" : f32[4,3]\n";

TEST(PackLinears, NotASharedWeight) {  // a tied one: read by somebody else, too
  expect_kept(kTwoWeights + "%3 = linear(%0, %1, _) : f32[5,4]\n%4 = linear(%0, %2, _) : f32[5,4]\n%5 = add(%2, %2) : f32[4,3]\n");
  expect_kept(kTwoWeights + "%3 = linear(%0, %1, _) : f32[5,4]\n%4 = linear(%0, %2, _) : f32[5,4]\noutput \"w\" = %1\n");
  expect_kept("%1 = parameter \"a\" : f32[4,3]\n%2 = linear(%0, %1, _) : f32[5,4]\n%3 = linear(%0, %1, _) : f32[5,4]\n");
}
TEST(PackLinears, NotWithABias) {
  expect_kept(kTwoWeights + "%3 = parameter \"bias\" : f32[4]\n%4 = linear(%0, %1, %3) : f32[5,4]\n%5 = linear(%0, %2, _) : f32[5,4]\n");
}
TEST(PackLinears, NotOfDifferentInputs) {
  expect_kept(kTwoWeights + "%3 = input \"y\" : f32[5,3]\n%4 = linear(%0, %1, _) : f32[5,4]\n%5 = linear(%3, %2, _) : f32[5,4]\n");
}
TEST(PackLinears, NotOfDifferentAttributes) {
  expect_kept(kTwoWeights + "%3 = linear(%0, %1, _) : f32[5,4]\n%4 = linear(%0, %2, _) {wide=true} : f32[5,4]\n");
}
TEST(PackLinears, NotAComputedOrStatelessWeight) {
  expect_kept(kTwoWeights + "%3 = add(%1, %1) : f32[4,3]\n%4 = linear(%0, %3, _) : f32[5,4]\n%5 = linear(%0, %2, _) : f32[5,4]\n");
  expect_kept(
      "%1 = input \"a\" : f32[4,3]\n%2 = parameter \"b\" : f32[4,3]\n%3 = linear(%0, %1, _) : f32[5,4]\n%4 = linear(%0, %2, _) : "
      "f32[5,4]\n");
}
TEST(PackLinears, NotAnotherDType) {
  expect_kept(
      "%1 = parameter \"a\" : bf16[4,3]\n%2 = parameter \"b\" : f32[4,3]\n%3 = linear(%0, %1, _) : f32[5,4]\n%4 = linear(%0, %2, _) : "
      "f32[5,4]\n");
}

// `count` siblings, each from where `path` says.
Graph siblings(int count, std::string (*path)(int)) {
  Graph graph(toy::table());
  const ValueId x = graph.add_leaf(LeafKind::kInput, "x", {DType::kF32, {5, 3}});
  for (int k = 0; k < count; ++k) {
    graph.set_origin({graph.intern(path(k)), 0, k + 1, 1});
    const ValueId in[] = {x, graph.add_leaf(LeafKind::kParameter, "w" + std::to_string(k), {DType::kF32, {1, 3}})};
    const uint32_t narrow[] = {0, 0};
    graph.add_output("y" + std::to_string(k),
                     graph.output(*graph.emit(*toy::table().find("linear"), in, std::span<const uint32_t>(narrow))));
  }
  return graph;
}
size_t count_nodes(const Graph& graph, std::string_view op) {
  size_t count = 0;
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) count += graph.def({n}).name == op ? 1 : 0;
  return count;
}

TEST(PackLinears, NotOfAnotherInstance) {
  const Graph graph = siblings(2, [](int k) { return "decoder." + std::to_string(k); });
  EXPECT_EQ(after(pack_linears, graph), print(graph));
}
TEST(PackLinears, AtMostEightParts) {
  const auto same = [](int) { return std::string("decoder.0"); };
  const struct {
    int siblings;
    size_t linears, splits;
  } expected[] = {{1, 1, 0}, {2, 1, 1}, {8, 1, 1}, {9, 2, 1}, {10, 2, 2}, {17, 3, 2}};
  for (const auto& e : expected) {
    const Result<Rewritten> packed = pack_linears(siblings(e.siblings, same), {});
    ASSERT_TRUE(verify(packed->graph));
    EXPECT_EQ(count_nodes(packed->graph, "linear"), e.linears) << e.siblings;
    EXPECT_EQ(count_nodes(packed->graph, "split"), e.splits) << e.siblings;
  }
}

}  // namespace
}  // namespace glim
