#include <gtest/gtest.h>

#include "engine/graph.h"
#include "tests/toy_ops.h"

namespace glim {
namespace {

const OpDef& add() { return toy::table()[*toy::table().find("add")]; }

TEST(OpTable, RowZeroIsTheLeaf) {
  const OpTable table;
  EXPECT_EQ(table.size(), 1U);
  EXPECT_EQ(table[kLeafOp].role, Role::kLeaf);
}

TEST(OpTable, FindsWhatWasAdded) {
  OpTable table;
  const Result<OpId> row = table.add(add());
  ASSERT_TRUE(row);
  EXPECT_EQ(table.find("add"), std::optional(*row));
  EXPECT_EQ(table.with_role(Role::kAdd), *row);
  EXPECT_EQ(table.names(), (std::vector<std::string_view>{"leaf", "add"}));
  EXPECT_FALSE(table.find("sub").has_value());
}

TEST(OpTable, RefusesATakenName) {
  OpTable table;
  ASSERT_TRUE(table.add(add()));
  const Result<OpId> again = table.add(add());
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().message, "an op named 'add' is registered already");
  OpDef leaf = add();
  leaf.name = "leaf";
  EXPECT_FALSE(table.add(leaf));
}

TEST(OpTable, RefusesWhatIsNotSaid) {
  const std::vector<void (*)(OpDef&)> omissions = {[](OpDef& d) { d.summary = {}; },
                                                   [](OpDef& d) { d.outputs = {}; },
                                                   [](OpDef& d) { d.diff = Diff::kUnset; },
                                                   [](OpDef& d) { d.infer = nullptr; },
                                                   [](OpDef& d) { d.diff = Diff::kHasVjp; },
                                                   [](OpDef& d) { d.cpu = nullptr; },
                                                   [](OpDef& d) { d.cost = nullptr; },
                                                   [](OpDef& d) { d.memory.alias = nullptr; },
                                                   [](OpDef& d) { d.precision = Precision::kUnset; },
                                                   [](OpDef& d) { d.shard = Shard::kUnset; },
                                                   [](OpDef& d) { d.cases = nullptr; },
                                                   [](OpDef& d) { d.name = ""; }};
  for (size_t k = 0; k < omissions.size(); ++k) {
    OpTable table;
    OpDef def = add();
    omissions[k](def);
    const Result<OpId> row = table.add(def);
    ASSERT_FALSE(row) << k;
    EXPECT_NE(row.error().message.find("incomplete"), std::string::npos);
  }
}

TEST(OpTableDeathTest, AMissingRoleIsABug) { EXPECT_DEATH((void)OpTable().with_role(Role::kCast), "no op with the role"); }

TEST(Graph, NoOpGrowsAShapePastTheLimits) {
  Graph graph(toy::table());
  const ValueId half = graph.add_leaf(LeafKind::kInput, "x", {DType::kF32, {int64_t{1} << 30, 1}});
  const ValueId in[] = {half, half};
  std::vector<uint32_t> words(kWordsPerAttr);  // axis 0
  const Result<NodeId> node = graph.emit(*toy::table().find("concat"), in, std::span<const uint32_t>(words));
  ASSERT_FALSE(node);
  EXPECT_EQ(node.error().message, "concat: dimension 2147483648 is over the limit of 2147483647");
}

}  // namespace
}  // namespace glim
