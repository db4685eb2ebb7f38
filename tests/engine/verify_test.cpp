#include "engine/verify.h"

#include <gtest/gtest.h>

#include "engine/parse.h"
#include "tests/toy_ops.h"

namespace glim {

// Breaks what the public functions of a graph protect.
struct GraphSurgery {
  static Node& node(Graph& g, uint32_t n) { return g.nodes_[n]; }
  static ValueId& operand(Graph& g, uint32_t n, size_t k) { return g.operands_[g.nodes_[n].inputs + k]; }
  static uint32_t& attr_word(Graph& g, uint32_t n, size_t k) { return g.attr_words_[g.nodes_[n].attrs + k]; }
  static std::vector<TensorType>& types(Graph& g) { return g.value_types_; }
  static std::vector<NodeId>& producers(Graph& g) { return g.value_producers_; }
  static std::vector<Leaf>& leaves(Graph& g) { return g.leaves_; }
  static std::vector<StateUpdate>& updates(Graph& g) { return g.updates_; }
};

namespace {

using Surgery = GraphSurgery;

struct Violation {
  std::string name;
  void (*damage)(Graph&);
  std::string message;  // a part of it
};
std::ostream& operator<<(std::ostream& out, const Violation& v) { return out << v.name; }

// Nodes 0 to 2 are leaves, 3 is an add, 4 a scale, 5 a sum_difference (values %5 and %6), 6 a choose.
Graph good() {
  Result<Graph> graph = parse(
      "%0 = input \"x\" : f32[2,3]\n%1 = parameter \"w\" : f32[2,3]\n%2 = seed \"s\" : f32[2,3]\n"
      "%3 = add(%0, %1)\n%4 = scale(%3) {factor=2, mode=twice}\n%5, %6 = sum_difference(%4, %2)\n%7 = choose(%5, _, %6)\n"
      "output \"y\" = %7\nupdate %1 = %6\n",
      toy::table());
  GLIM_CHECK(bool(graph), graph.error().to_string());
  return *std::move(graph);
}

class Verify : public testing::TestWithParam<Violation> {};
TEST_P(Verify, Objects) {
  Graph graph = good();
  ASSERT_TRUE(verify(graph));
  GetParam().damage(graph);
  const Status status = verify(graph);
  ASSERT_FALSE(status) << GetParam().name;
  EXPECT_NE(status.error().message.find(GetParam().message), std::string::npos) << status.error().message;
}
const Violation kViolations[] = {
    {"later operand", [](Graph& g) { Surgery::operand(g, 3, 1) = {4}; },
     "node 3 (add): operand 1 is %4, which does not precede the node's output %3"},
    {"own output", [](Graph& g) { Surgery::operand(g, 3, 0) = {3}; }, "does not precede"},
    {"operand out of range", [](Graph& g) { Surgery::operand(g, 3, 0) = {1000}; }, "does not precede"},
    {"absent operand", [](Graph& g) { Surgery::operand(g, 3, 1) = {}; }, "operand 1 is absent but not optional"},
    {"too few operands", [](Graph& g) { Surgery::node(g, 3).num_inputs = 1; }, "1 operands, expected 2"},
    {"too many operands", [](Graph& g) { Surgery::node(g, 3).num_inputs = 3; }, "3 operands, expected 2"},
    {"no op", [](Graph& g) { Surgery::node(g, 3).op = {9999}; }, "node 3: no op of the table"},
    {"outputs out of order", [](Graph& g) { Surgery::node(g, 4).outputs = {3}; }, "its outputs are not the next values of the tape"},
    {"no output", [](Graph& g) { Surgery::node(g, 4).num_outputs = 0; }, "its outputs are not the next values of the tape"},
    {"more outputs than values", [](Graph& g) { Surgery::node(g, 6).num_outputs = 2; }, "its outputs are not the next values of the tape"},
    {"fewer outputs than infer says",
     [](Graph& g) {
       Surgery::node(g, 5).num_outputs = 1;
       Surgery::node(g, 6).outputs = {6};
     },
     "node 5 (sum_difference): 1 outputs, but infer says 2"},
    {"value of nobody",
     [](Graph& g) {
       Surgery::types(g).push_back({});
       Surgery::producers(g).push_back({6});
     },
     "9 values, but the nodes have 8 outputs"},
    {"producer table", [](Graph& g) { Surgery::producers(g)[6] = {4}; }, "the producer table does not list it for %6"},
    {"type", [](Graph& g) { Surgery::types(g)[3].dtype = DType::kF64; }, "node 3 (add): output 0 is f64[2,3], but infer says f32[2,3]"},
    {"operand type",
     [](Graph& g) {
       Surgery::types(g)[0].shape = {7, 7};
     },
     "node 3 (add): operand types differ"},
    {"enumerator", [](Graph& g) { Surgery::attr_word(g, 4, 6) = 3; }, "attribute 'mode' is 3, outside [0, 3)"},
    {"negative enumerator", [](Graph& g) { Surgery::attr_word(g, 4, 7) = UINT32_MAX; }, "attribute 'mode'"},
    {"flag", [](Graph& g) { Surgery::attr_word(g, 4, 4) = 2; }, "attribute 'negate' is 2, outside [0, 2)"},
    {"leaf with an operand", [](Graph& g) { Surgery::node(g, 1).num_inputs = 1; }, "a leaf has one output and no operand"},
    {"leaf table", [](Graph& g) { Surgery::leaves(g)[1].value = {0}; }, "the table of leaves does not list it"},
    {"leaf row", [](Graph& g) { Surgery::attr_word(g, 1, 0) = 77; }, "the table of leaves does not list it"},
    {"leaf of no node",
     [](Graph& g) {
       Surgery::leaves(g).push_back({{4}, LeafKind::kInput, "ghost"});
     },
     "leaf 'ghost' is no leaf node"},
    {"leaf names",
     [](Graph& g) {
       g.add_leaf(LeafKind::kInput, "x", {DType::kF32, {1}});
     },
     "two leaves are named 'x'"},
    {"output names", [](Graph& g) { g.add_output("y", {0}); }, "two outputs are named 'y'"},
    {"output out of range", [](Graph& g) { g.add_output("z", {8}); }, "output 'z' is no value of the graph"},
    {"output of nothing", [](Graph& g) { g.add_output("z", {}); }, "output 'z' is no value of the graph"},
    {"two updates", [](Graph& g) { g.add_update({1}, {0}); }, "'w' is updated twice"},
    {"update of an input", [](Graph& g) { Surgery::updates(g)[0].state = {0}; }, "an update of %0, which is no state"},
    {"update of a seed", [](Graph& g) { Surgery::updates(g)[0].state = {2}; }, "an update of %2, which is no state"},
    {"update of a node", [](Graph& g) { Surgery::updates(g)[0].state = {3}; }, "an update of %3, which is no state"},
    {"update by nothing", [](Graph& g) { Surgery::updates(g)[0].next = {}; }, "an update names no value"},
    {"update of another type",
     [](Graph& g) {
       Surgery::updates(g)[0].next = g.add_leaf(LeafKind::kInput, "v", {DType::kF32, {1}});
     },
     "the update of 'w' changes its type from f32[2,3] to f32[1]"},
};
INSTANTIATE_TEST_SUITE_P(Laws, Verify, testing::ValuesIn(kViolations));

TEST(Verify, AsksInferAgain) {
  Graph graph(toy::table());
  const ValueId in[] = {graph.add_leaf(LeafKind::kInput, "x", {DType::kF32, {2}})};
  ASSERT_TRUE(graph.emit(*toy::table().find("drift"), in, std::span<const uint32_t>{}));
  EXPECT_TRUE(verify(graph));
  toy::drift_dtype = DType::kF64;
  const Status status = verify(graph);
  toy::drift_dtype = DType::kF32;
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "node 1 (drift): output 0 is f32[2], but infer says f64[2]");
}

TEST(Verify, NamesTheOrigin) {
  Graph graph = good();
  graph.set_origin({graph.intern("decoder.3"), graph.intern("m.toml"), 4, 5});
  const ValueId in[] = {ValueId{0}, ValueId{1}};
  ASSERT_TRUE(graph.emit(*toy::table().find("add"), in, std::span<const uint32_t>{}));
  Surgery::operand(graph, 7, 0) = {};
  EXPECT_EQ(verify(graph).error().message, "node 7 (add, decoder.3 (m.toml:4:5)): operand 0 is absent but not optional");
}

TEST(Verify, RandomGraphsKeepTheLaws) {
  std::mt19937_64 random(3);
  for (int k = 0; k < 200; ++k) ASSERT_TRUE(verify(toy::random_graph(random, 40)));
}

}  // namespace
}  // namespace glim
