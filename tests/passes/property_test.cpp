// Every pass, and the lists of them, on random graphs: the same outputs and updates, to the bit.
#include <map>

#include "engine/passes/cse.h"
#include "engine/passes/dce.h"
#include "engine/passes/fuse.h"
#include "engine/passes/pack_linears.h"
#include "engine/passes/pass_list.h"
#include "tests/passes/golden.h"
#include "tests/toy_ops.h"

namespace glim {
namespace {

using Values = std::vector<std::vector<uint64_t>>;

std::map<std::string, std::vector<uint64_t>> results(const Graph& graph, const Values& values) {
  std::map<std::string, std::vector<uint64_t>> named;
  for (const NamedValue& output : graph.outputs()) named["output " + output.name] = values[output.value.index];
  for (const StateUpdate& update : graph.updates()) named["update " + graph.leaf(update.state).name] = values[update.next.index];
  return named;
}

void expect_leaves_kept(const Graph& before, const Graph& now) {
  ASSERT_EQ(before.leaves().size(), now.leaves().size());
  for (const Leaf& leaf : before.leaves()) {
    const ValueId found = now.find_leaf(leaf.name);
    ASSERT_TRUE(found.valid()) << leaf.name;
    EXPECT_EQ(now.leaf(found).kind, leaf.kind);
    EXPECT_EQ(now.type(found), before.type(leaf.value));
  }
}

TEST(Passes, KeepTheMeaningOfRandomGraphs) {
  const struct {
    const char* name;
    PassFn run;
  } passes[] = {{"dce", dce}, {"cse", cse}, {"fuse_forward", fuse_forward}, {"fuse_joint", fuse_joint}, {"pack_linears", pack_linears}};
  std::map<std::string, int> changed;
  std::mt19937_64 random(11);
  for (int k = 0; k < 1000; ++k) {
    const Graph graph = toy::random_graph(random, 10 + k % 30);
    const Values old_values = toy::interpret(graph);
    const auto expected = results(graph, old_values);
    for (const auto& pass : passes) {
      const Result<Rewritten> rewritten = pass.run(graph, {});
      ASSERT_TRUE(rewritten);
      const Graph& now = rewritten->graph;
      ASSERT_TRUE(verify(now)) << pass.name << "\n" << print(graph) << "->\n" << print(now);
      const Values new_values = toy::interpret(now);
      ASSERT_EQ(results(now, new_values), expected) << pass.name << "\n" << print(graph) << "->\n" << print(now);
      expect_leaves_kept(graph, now);
      // The map tells the truth about every value, not only about outputs.
      for (uint32_t v = 0; v < graph.num_values(); ++v) {
        const ValueId there = rewritten->map[{v}];
        ASSERT_TRUE(!there.valid() || old_values[v] == new_values[there.index]) << pass.name << " %" << v << "\n" << print(graph);
      }
      changed[pass.name] += print(now) != print(graph) ? 1 : 0;
    }
    for (const std::span<const Pass> list : {forward_passes(), joint_passes()}) {
      const Result<Graph> now = run_passes(graph, list, {}, {});
      ASSERT_TRUE(now);
      ASSERT_EQ(results(*now, toy::interpret(*now)), expected) << print(graph) << "->\n" << print(*now);
      expect_leaves_kept(graph, *now);
    }
  }
  for (const auto& pass : passes) EXPECT_GT(changed[pass.name], 50) << pass.name;  // otherwise nothing was tested
}

}  // namespace
}  // namespace glim
