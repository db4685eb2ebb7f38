#include <set>

#include "engine/passes/dce.h"
#include "engine/passes/pass_list.h"
#include "tests/passes/golden.h"
#include "tests/toy_ops.h"

namespace glim {
namespace {

Graph small() {
  return read_graph("%0 = input \"x\" : f32[2]\n%1 = add(%0, %0)\n%2 = add(%0, %0)\n%3 = mul(%0, %0)\noutput \"y\" = %2\n", toy::table());
}

// Appends an output "trace of <name>", so that the order of passes can be read off the graph.
template <char kName>
Result<Rewritten> trace(const Graph& graph, const PassContext& context) {
  Result<Rewritten> same = dce(graph, context);
  same->graph.add_output(std::string("trace of ") + kName, {0});
  return same;
}
Result<Rewritten> breaks_a_law(const Graph& graph, const PassContext& context) {
  Result<Rewritten> same = dce(graph, context);
  same->graph.add_output("y", {0});  // a second one
  return same;
}
Result<Rewritten> refuses(const Graph&, const PassContext&) { return invalid_argument("the budget is too small"); }

constexpr Pass kPasses[] = {{"a", trace<'a'>, "first"}, {"b", trace<'b'>, "second"}, {"c", trace<'c'>, "third"}};

std::string order(const PassOptions& options) {
  const Result<Graph> graph = run_passes(small(), kPasses, {}, options);
  std::string names;
  for (const NamedValue& output : graph->outputs()) names += output.name == "y" ? "" : output.name.substr(9);
  return names;
}

TEST(PassDriver, RunsInOrder) { EXPECT_EQ(order({}), "abc"); }
TEST(PassDriver, Disables) { EXPECT_EQ(order({.disabled = {"b"}}), "ac"); }
TEST(PassDriver, StopsAfter) {
  EXPECT_EQ(order({.stop_after = "b"}), "ab");
  EXPECT_EQ(order({.disabled = {"b"}, .stop_after = "b"}), "a");
}
TEST(PassDriver, HandsOutEveryGraph) {
  std::string seen;
  ASSERT_TRUE(run_passes(small(), kPasses, {}, {.after_pass = [&](std::string_view pass, const Graph& graph) {
                           seen += std::string(pass) + std::to_string(graph.outputs().size()) + " ";
                         }}));
  EXPECT_EQ(seen, "a2 b3 c4 ");
}
TEST(PassDriver, ReportsTimeAndSize) {
  std::vector<PassReport> reports;
  ASSERT_TRUE(run_passes(small(), kPasses, {}, {.disabled = {"c"}, .reports = &reports}));
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_EQ(reports[0].name, "a");
  EXPECT_EQ(reports[0].nodes_before, 4U);
  EXPECT_EQ(reports[0].nodes_after, 2U);
  EXPECT_EQ(reports[1].nodes_before, 2U);
  EXPECT_GT(reports[0].seconds, 0);
  EXPECT_LT(reports[0].seconds, 10);
}
TEST(PassDriver, ReturnsAPassesUserError) {
  constexpr Pass kRefusing[] = {{"r", refuses, "alone"}};
  const Result<Graph> graph = run_passes(small(), kRefusing, {}, {});
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().message, "the budget is too small");
}
TEST(PassDriverDeathTest, AnInvalidGraphIsABugOfThePass) {
  constexpr Pass kBroken[] = {{"breaks", breaks_a_law, "alone"}};
  EXPECT_DEATH((void)bool(run_passes(small(), kBroken, {}, {})), "after pass 'breaks': two outputs are named 'y'");
}
TEST(PassDriverDeathTest, APlaceNeedsAReason) {
  constexpr Pass kMute[] = {{"mute", dce, ""}};
  EXPECT_DEATH((void)bool(run_passes(small(), kMute, {}, {})), "does not say why");
}

TEST(PassList, NamesAreUniqueAndPlacesHaveReasons) {
  for (const std::span<const Pass> list : {forward_passes(), joint_passes()}) {
    std::set<std::string_view> names;
    for (const Pass& pass : list) {
      EXPECT_TRUE(names.insert(pass.name).second) << pass.name;
      EXPECT_GT(pass.why_here.size(), 20U) << pass.name;
    }
  }
}
TEST(PassList, KnowsItsNames) {
  EXPECT_TRUE(check_pass_names({.disabled = {"cse", "fuse_joint"}, .stop_after = "pack_linears"}));
  EXPECT_TRUE(check_pass_names({}));
  const Status unknown = check_pass_names({.stop_after = "fuse_forwrd"});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().message, "no pass is named 'fuse_forwrd'; did you mean 'fuse_forward'?");
  EXPECT_FALSE(check_pass_names({.disabled = {"dce", "nothing"}}));
}

}  // namespace
}  // namespace glim
