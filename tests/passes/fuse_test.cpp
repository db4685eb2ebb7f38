// The fusion driver, over toy patterns that leave everything to it.
#include "engine/passes/fuse.h"

#include "tests/passes/golden.h"
#include "tests/toy_ops.h"

namespace glim {
namespace {

const std::string kLeaves = "%0 = input \"x\" : f32[2]\n%1 = input \"y\" : f32[2]\n";

void expect_fused(PassFn pass, const std::string& before, const std::string& expected) {
  expect_rewrite(pass, toy::table(), kLeaves + before, kLeaves + expected);
}
void expect_refused(PassFn pass, const std::string& text) { expect_unchanged(pass, toy::table(), kLeaves + text); }

TEST(Fuse, ReplacesAChain) {
  expect_fused(fuse_forward, "%2 = scale(%0) {factor=3, offset=5}\n%3 = mul(%0, %1)\n%4 = add(%2, %3)\noutput \"z\" = %4\n",
               "%2 = mul(%0, %1) : f32[2]\n%3 = scale_add(%0, %2) {factor=3, offset=5} : f32[2]\noutput \"z\" = %3\n");
}
TEST(Fuse, ReplacesEveryMatch) {
  expect_fused(fuse_forward,
               "%2 = scale(%0) {factor=3}\n%3 = add(%2, %1)\n%4 = scale(%3) {factor=3}\n%5 = add(%4, %3)\noutput \"z\" = %5\n",
               "%2 = scale_add(%0, %1) {factor=3} : f32[2]\n%3 = scale_add(%2, %2) {factor=3} : f32[2]\noutput \"z\" = %3\n");
}
TEST(Fuse, RefusesTwoConsumers) {
  expect_refused(fuse_forward,
                 "%2 = scale(%0) {factor=3} : f32[2]\n%3 = add(%2, %1) : f32[2]\n%4 = mul(%2, %3) : f32[2]\noutput \"z\" = %4\n");
}
TEST(Fuse, RefusesAnOutputInTheMiddle) {
  expect_refused(fuse_forward,
                 "%2 = scale(%0) {factor=3} : f32[2]\n%3 = add(%2, %1) : f32[2]\noutput \"middle\" = %2\noutput \"z\" = %3\n");
}
TEST(Fuse, RefusesAnUpdateInTheMiddle) {
  expect_refused(
      fuse_forward,
      "%2 = parameter \"w\" : f32[2]\n%3 = scale(%0) {factor=3} : f32[2]\n%4 = add(%3, %1) : f32[2]\noutput \"z\" = %4\nupdate %2 = %3\n");
}
TEST(Fuse, RefusesAnAttributeOutsideTheLaw) {
  expect_refused(fuse_forward, "%2 = scale(%0) {factor=3, mode=twice} : f32[2]\n%3 = add(%2, %1) : f32[2]\noutput \"z\" = %3\n");
}
TEST(Fuse, RunsThePatternsOfItsPhaseOnly) {
  expect_refused(fuse_joint, "%2 = scale(%0) {factor=3} : f32[2]\n%3 = add(%2, %1) : f32[2]\noutput \"z\" = %3\n");
  expect_refused(fuse_forward, "%2 = front(%0) : f32[2]\n%3 = back(%0, %2, %1) : f32[2]\noutput \"z\" = %3\n");
}

// The match replaces values of two nodes. What reads the first one stands between them.
TEST(Fuse, EmitsInTheOrderOfData) {
  expect_fused(fuse_joint,
               "%2 = front(%0)\n%3 = mul(%2, %0)\n%4 = scale(%1) {factor=2}\n%5 = back(%0, %2, %4)\noutput \"a\" = %3\noutput \"b\" = %5\n",
               "%2 = scale(%1) {factor=2} : f32[2]\n%3, %4 = front_back(%0, %2) : f32[2], f32[2]\n%5 = mul(%3, %0) : f32[2]\noutput \"a\" "
               "= %5\noutput \"b\" = %4\n");
}
// The cotangent depends on front's own output: joining would be a cycle.
TEST(Fuse, RefusesAMatchThatDependsOnItself) {
  expect_refused(fuse_joint, "%2 = front(%0) : f32[2]\n%3 = mul(%2, %1) : f32[2]\n%4 = back(%0, %2, %3) : f32[2]\noutput \"b\" = %4\n");
  expect_refused(fuse_joint, "%2 = front(%0) : f32[2]\n%3 = back(%0, %2, %2) : f32[2]\noutput \"b\" = %3\n");
}
// Each of two matches alone is fine, but each one's cotangent depends on the other one's front: one of them is given up.
TEST(Fuse, GivesUpOneOfTwoThatDependOnEachOther) {
  expect_fused(fuse_joint,
               "%2 = front(%0)\n%3 = front(%1)\n%4 = back(%0, %2, %3)\n%5 = back(%1, %3, %2)\noutput \"a\" = %4\noutput \"b\" = %5\n",
               "%2 = front(%0) : f32[2]\n%3, %4 = front_back(%1, %2) : f32[2], f32[2]\n%5 = back(%0, %2, %3) : f32[2]\noutput \"a\" = "
               "%5\noutput \"b\" = %4\n");
}

TEST(FuseArgs, AnswersWhatPatternsAsk) {
  const Graph graph =
      read_graph(kLeaves + "%2 = mul(%0, %1)\n%3 = add(%0, %0)\n%4 = mul(%2, %2)\n%5 = add(%3, %1)\noutput \"z\" = %5\n", toy::table());
  const Consumers consumers = count_consumers(graph);
  const FuseArgs args{graph, {5}, consumers};
  EXPECT_EQ(args.sole_producer({3}, "add"), std::optional(NodeId{3}));
  EXPECT_FALSE(args.sole_producer({3}, "mul"));
  EXPECT_FALSE(args.sole_producer({2}, "mul"));  // two operand positions
  EXPECT_FALSE(args.sole_producer({4}, "mul"));  // nobody reads it
  EXPECT_FALSE(args.sole_producer({}, "mul"));
  EXPECT_TRUE(args.depends_on({4}, {2}));
  EXPECT_TRUE(args.depends_on({2}, {2}));
  EXPECT_TRUE(args.depends_on({5}, {0}));
  EXPECT_FALSE(args.depends_on({5}, {2}));
  EXPECT_FALSE(args.depends_on({2}, {4}));
}

}  // namespace
}  // namespace glim
