#include "engine/passes/cse.h"
#include "engine/passes/dce.h"
#include "tests/passes/golden.h"
#include "tests/toy_ops.h"

namespace glim {
namespace {

TEST(Dce, DropsWhatNobodyReadsAndKeepsLeaves) {
  expect_rewrite(dce, toy::table(),
                 "%0 = input \"x\" : f32[2]\n"
                 "%1 = input \"unused\" : f32[2]\n"
                 "%2 = parameter \"w\" : f32[2]\n"
                 "%3 = add(%0, %2)\n"
                 "%4 = mul(%3, %0)\n"
                 "%5 = add(%4, %4)\n"  // dead, and keeps %4 from being read
                 "%6, %7 = sum_difference(%3, %0)\n"
                 "%8 = mul(%3, %3)\n"
                 "output \"y\" = %7\n"
                 "update %2 = %8\n",
                 "%0 = input \"x\" : f32[2]\n"
                 "%1 = input \"unused\" : f32[2]\n"
                 "%2 = parameter \"w\" : f32[2]\n"
                 "%3 = add(%0, %2) : f32[2]\n"
                 "%4, %5 = sum_difference(%3, %0) : f32[2], f32[2]\n"
                 "%6 = mul(%3, %3) : f32[2]\n"
                 "output \"y\" = %5\n"
                 "update %2 = %6\n");
}

TEST(Dce, KeepsWhatAnUpdateNeeds) {
  expect_unchanged(dce, toy::table(),
                   "%0 = input \"x\" : f32[2]\n"
                   "%1 = gradient \"g\" : f32[2]\n"
                   "%2 = accumulate(%1, %0) : f32[2]\n"
                   "update %1 = %2\n");
}

TEST(Dce, SaysWhereValuesWent) {
  const Graph graph = read_graph("%0 = input \"x\" : f32[2]\n%1 = add(%0, %0)\n%2 = mul(%0, %0)\noutput \"y\" = %2\n", toy::table());
  const Result<Rewritten> rewritten = dce(graph, {});
  EXPECT_FALSE(rewritten->map[{1}].valid());
  EXPECT_EQ(rewritten->map[{2}], ValueId{1});
  EXPECT_FALSE(rewritten->map[{}].valid());
}

TEST(Cse, MergesEqualExpressionsAndWhatThenIsEqual) {
  expect_rewrite(cse, toy::table(),
                 "%0 = input \"x\" : f32[2]\n"
                 "%1, %2 = sum_difference(%0, %0)\n"
                 "%3, %4 = sum_difference(%0, %0)\n"
                 "%5 = scale(%2) {factor=2}\n"
                 "%6 = scale(%4) {factor=2, mode=plain}\n"
                 "%7 = mul(%5, %6)\n"
                 "output \"y\" = %7\n"
                 "output \"z\" = %6\n",
                 "%0 = input \"x\" : f32[2]\n"
                 "%1, %2 = sum_difference(%0, %0) : f32[2], f32[2]\n"
                 "%3 = scale(%2) {factor=2} : f32[2]\n"
                 "%4 = mul(%3, %3) : f32[2]\n"
                 "output \"y\" = %4\n"
                 "output \"z\" = %3\n");
}

TEST(Cse, KeepsApart) {
  expect_unchanged(cse, toy::table(),
                   "%0 = input \"x\" : f32[2]\n"
                   "%1 = input \"y\" : f32[2]\n"           // leaves of one type
                   "%2 = scale(%0) {factor=0} : f32[2]\n"  // attributes that differ in one bit
                   "%3 = scale(%0) {factor=-0} : f32[2]\n"
                   "%4 = add(%0, %1) : f32[2]\n"  // the order of operands
                   "%5 = add(%1, %0) : f32[2]\n"
                   "%6 = choose(%0, _, %1) : f32[2]\n"  // an absent operand
                   "%7 = choose(%0, %0, %1) : f32[2]\n"
                   "%8 = accumulate(%0, %1) : f32[2]\n"  // each writes a buffer of its own
                   "%9 = accumulate(%0, %1) : f32[2]\n"
                   "%10 = all_reduce(%0) : f32[2]\n"  // every rank meets both
                   "%11 = all_reduce(%0) : f32[2]\n"
                   "%12 = mul(%0, %1) : f32[2]\n");  // another op of the same operands
}

}  // namespace
}  // namespace glim
