// Rematerialisation: policies against golden graphs, and every rewrite against the original through a small interpreter.
#include "engine/passes/rematerialise.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/verify.h"
#include "tests/engine/rematerialise_toy.h"

namespace glim {
namespace {

using namespace rematerialise_toy;

// x -> 1 (expensive) -> 2 (cheap) -> 3 (expensive); the backward pass reads 1, 2 and x.
Graph chain(std::string_view path = "net.0") {
  Graph g(table());
  const ValueId x = g.add_leaf(LeafKind::kInput, "x", vector_type(4)), w = g.add_leaf(LeafKind::kParameter, "w", vector_type(4));
  enter(g, path);
  const ValueId a = work(g, 1, {x, w}, 1000, 4, true), b = work(g, 2, {a}, 8, 4);
  enter(g, "head");
  g.add_output("loss", work(g, 3, {b, w}, 1000, 4, true));
  const ValueId seed = g.add_leaf(LeafKind::kSeed, "seed", vector_type(4));
  const ValueId ct = work(g, 13, {seed, w}, 1, 4);
  g.add_output("ct_w", work(g, 23, {seed, b}, 1, 4));
  const ValueId ct_a = work(g, 12, {ct, a}, 1, 4);
  g.add_output("ct_x", work(g, 11, {ct_a, x}, 1, 4));
  return g;
}

TEST(Rematerialise, NoneChangesNothing) {
  const Graph g = chain();
  EXPECT_EQ(text(run(g, Rematerialise::kNone).graph), text(g));
  const RematerialisationReport report = describe_saved(g, context(Rematerialise::kNone));
  EXPECT_EQ(report.saved_bytes, 64);
  EXPECT_EQ(report.num_saved, 2U);
  EXPECT_EQ(report.recompute_seconds, 0);
}

TEST(Rematerialise, SelectiveKeepsTheExpensiveAndRunsTheCheapAgain) {
  const Graph g = chain("net");
  const Rewritten rewritten = run(g, Rematerialise::kSelective);
  EXPECT_EQ(text(rewritten.graph), "1(x,w) 2(1) 3(2,w) 13(seed,w) 2(1) 23(seed,2) 12(13,1) 11(12,x)");
  EXPECT_EQ(evaluate(rewritten.graph), evaluate(g));
  const RematerialisationReport report = describe_saved(g, context(Rematerialise::kSelective));
  EXPECT_EQ(report.saved_bytes, 32);
  EXPECT_EQ(report.recompute_seconds, 8);
  EXPECT_EQ(report.recompute_flops, 8);
  // The copy comes from where its original came from; the backward reader reads the copy, the forward reader the original.
  const NodeId copy{7}, reader{8};
  EXPECT_EQ(rewritten.graph.text(rewritten.graph.origin(copy).path), "net");
  EXPECT_EQ(rewritten.graph.inputs(reader)[1], rewritten.graph.output(copy));
  EXPECT_EQ(rewritten.graph.inputs({4})[0], rewritten.graph.output({3}));
  EXPECT_EQ(rewritten.map[g.output({3})], rewritten.graph.output({3}));
}

// What goes from one instance of a stack to the next is kept: to make it again, all instances below would have to run again first.
TEST(Rematerialise, SelectiveAndAutoKeepWhatLeavesAnInstance) {
  const Graph g = chain("net.0");
  EXPECT_EQ(text(run(g, Rematerialise::kSelective).graph), text(g));
  const RematerialisationReport least = describe_saved(g, context(Rematerialise::kAuto, 0));
  EXPECT_FALSE(least.within_budget);
  EXPECT_EQ(least.saved_bytes, 32);
  EXPECT_EQ(least.recompute_seconds, 1000);
}

TEST(Rematerialise, SelectiveDoesNothingThatFreesNoBytes) {
  Graph g(table());
  const ValueId x = g.add_leaf(LeafKind::kInput, "x", vector_type(4));
  const ValueId a = work(g, 1, {x}, 1000, 4, true), b = work(g, 2, {a}, 8, 4);  // only b is needed: a would take as much
  g.add_output("loss", work(g, 3, {b}, 1, 4));
  const ValueId seed = g.add_leaf(LeafKind::kSeed, "seed", vector_type(4));
  g.add_output("ct", work(g, 4, {work(g, 5, {seed}, 1, 4), b}, 1, 4));
  EXPECT_EQ(text(run(g, Rematerialise::kSelective).graph), text(g));
}

TEST(Rematerialise, FullRunsAnInstanceAgainAndKeepsWhatIsOutside) {
  const Graph g = chain();
  // 2 crosses from net.0 to the head and is kept; 1 is inside.
  const Rewritten rewritten = run(g, Rematerialise::kFull);
  EXPECT_EQ(text(rewritten.graph), "1(x,w) 2(1) 3(2,w) 13(seed,w) 23(seed,2) 1(x,w) 12(13,1) 11(12,x)");
  EXPECT_EQ(evaluate(rewritten.graph), evaluate(g));
}

TEST(Rematerialise, AutoTakesTheLeastTimeThatFits) {
  const Graph g = chain("net");
  EXPECT_EQ(text(run(g, Rematerialise::kAuto, 64).graph), text(g));
  EXPECT_EQ(describe_saved(g, context(Rematerialise::kAuto, 63)).recompute_seconds, 8);
  EXPECT_EQ(describe_saved(g, context(Rematerialise::kAuto, 32)).recompute_seconds, 8);
  const RematerialisationReport all = describe_saved(g, context(Rematerialise::kAuto, 0));
  EXPECT_EQ(all.recompute_seconds, 1008);
  EXPECT_EQ(all.saved_bytes, 0);
  const Rewritten rewritten = run(g, Rematerialise::kAuto, 0);
  EXPECT_EQ(text(rewritten.graph), "1(x,w) 2(1) 3(2,w) 13(seed,w) 1(x,w) 2(1) 23(seed,2) 12(13,1) 11(12,x)");
  EXPECT_EQ(evaluate(rewritten.graph), evaluate(g));
}

TEST(Rematerialise, AViewKeepsItsOperandAliveAndCostsNothing) {
  Graph g(table());
  const ValueId x = g.add_leaf(LeafKind::kInput, "x", vector_type(4));
  const ValueId packed = work(g, 1, {x}, 1000, 10, true), q = view(g, packed, 0, 2), k = view(g, q, 1, 1);
  g.add_output("loss", work(g, 2, {q, k}, 1, 4));
  const ValueId seed = g.add_leaf(LeafKind::kSeed, "seed", vector_type(4));
  const ValueId ct = work(g, 3, {seed}, 1, 4);
  g.add_output("ct", work(g, 4, {ct, k}, 1, 4));
  // Kept: the whole of 1, and the view of it is read as it is.
  EXPECT_EQ(describe_saved(g, context(Rematerialise::kSelective)).saved_bytes, 80);
  EXPECT_EQ(text(run(g, Rematerialise::kSelective).graph), text(g));
  // Run again: the views of the copy are made again too.
  const Rewritten rewritten = run(g, Rematerialise::kAuto, 79);
  EXPECT_EQ(text(rewritten.graph), "1(x) view(1) view(view) 2(view,view) 3(seed) 1(x) view(1) view(view) 4(3,view)");
  EXPECT_EQ(evaluate(rewritten.graph), evaluate(g));
  EXPECT_EQ(describe_saved(g, context(Rematerialise::kAuto, 79)).recompute_seconds, 1000);
}

TEST(Rematerialise, ANodeWithSeveralOutputsRunsAgainAsAWhole) {
  Graph g(table());
  const ValueId x = g.add_leaf(LeafKind::kInput, "x", vector_type(4));
  const NodeId two = emit(g, "work", {x}, WorkAttrs{1, 50, 50, 4, 2});
  g.add_output("loss", work(g, 2, {g.output(two, 0), g.output(two, 1)}, 1, 4));
  const ValueId seed = g.add_leaf(LeafKind::kSeed, "seed", vector_type(4));
  const ValueId ct = work(g, 4, {work(g, 3, {seed}, 1, 4), g.output(two, 1)}, 1, 4);
  g.add_output("ct", work(g, 5, {ct, g.output(two, 0)}, 1, 4));
  const Rewritten rewritten = run(g, Rematerialise::kAuto, 63);  // one output of the two would fit: of no use
  EXPECT_EQ(text(rewritten.graph), "1(x) 2(1,1.1) 3(seed) 1(x) 4(3,1.1) 5(4,1)");
  EXPECT_EQ(evaluate(rewritten.graph), evaluate(g));
  EXPECT_EQ(describe_saved(g, context(Rematerialise::kAuto, 63)).saved_bytes, 0);
  EXPECT_EQ(describe_saved(g, context(Rematerialise::kAuto, 63)).recompute_seconds, 50);
}

TEST(Rematerialise, SomeNodesNeverRunAgain) {
  Graph g(table());
  const ValueId x = g.add_leaf(LeafKind::kInput, "x", vector_type(4)), count = g.add_leaf(LeafKind::kOptimizer, "count", vector_type(4));
  const ValueId reduced = g.output(emit(g, "reduce", {x}, NoAttrs{}));
  const ValueId start = work(g, 1, {x}, 1, 4), reads_start = work(g, 2, {start}, 1, 4);
  const ValueId sum = g.output(emit(g, "accumulate", {start, reads_start}, NoAttrs{}));
  const ValueId of_state = work(g, 3, {count}, 1, 4), later = work(g, 4, {of_state}, 1, 4), free = work(g, 5, {reduced}, 1, 4);
  g.add_update(count, work(g, 6, {later, sum, free}, 1, 4));
  const ValueId seed = g.add_leaf(LeafKind::kSeed, "seed", vector_type(4));
  const ValueId ct = work(g, 7, {seed}, 1, 4);
  g.add_output("ct", work(g, 8, {ct, reduced, reads_start, sum, of_state, later, free}, 1, 4));
  const RematerialisationChoice choice = choose_rematerialisation(g, context(Rematerialise::kAuto, 0));
  EXPECT_FALSE(choice.report.within_budget);
  EXPECT_EQ(choice.report.num_recomputed, 1U);
  EXPECT_TRUE(choice.recomputed[g.producer(free).index]);
  // reduced, reads_start, sum (in the buffer of `start`), of_state, later
  EXPECT_EQ(choice.report.saved_bytes, 5 * 32);
  EXPECT_EQ(evaluate(run(g, Rematerialise::kAuto, 0).graph), evaluate(g));
}

TEST(Rematerialise, WhatIsAnOutputAnywayIsKeptForNothing) {
  Graph g(table());
  const ValueId x = g.add_leaf(LeafKind::kInput, "x", vector_type(4)), a = work(g, 1, {x}, 1, 4);
  g.add_output("hidden", a);
  const ValueId seed = g.add_leaf(LeafKind::kSeed, "seed", vector_type(4));
  g.add_output("ct", work(g, 2, {work(g, 3, {seed}, 1, 4), a}, 1, 4));
  EXPECT_EQ(text(run(g, Rematerialise::kAuto, 0).graph), text(g));
  EXPECT_TRUE(describe_saved(g, context(Rematerialise::kAuto, 0)).within_budget);
}

TEST(Rematerialise, OriginalsThatServeOnlyTheBackwardPassMove) {
  Graph g(table());
  const ValueId x = g.add_leaf(LeafKind::kInput, "x", vector_type(4)), a = work(g, 1, {x}, 1, 4);
  const ValueId seed = g.add_leaf(LeafKind::kSeed, "seed", vector_type(4));
  g.add_output("ct", work(g, 2, {work(g, 3, {seed}, 1, 4), a}, 1, 4));
  const Rewritten rewritten = run(g, Rematerialise::kAuto, 0);
  EXPECT_EQ(text(rewritten.graph), "3(seed) 1(x) 2(3,1)");
  EXPECT_EQ(rewritten.map[a], rewritten.graph.inputs({4})[1]);
}

// Forward and backward of the head in one node: all of the forward pass runs for it, and runs again only after it.
TEST(Rematerialise, WhatTheFirstBackwardNodeReadsIsKept) {
  Graph g(table());
  const ValueId x = g.add_leaf(LeafKind::kInput, "x", vector_type(4));
  const ValueId a = work(g, 1, {x}, 1, 4), b = work(g, 2, {a}, 1, 4), hidden = work(g, 3, {b}, 1, 2);
  const NodeId head = emit(g, "work", {hidden, g.add_leaf(LeafKind::kSeed, "seed", vector_type(4))}, WorkAttrs{4, 1, 1, 4, 2});
  g.add_output("loss", g.output(head, 0));
  g.add_output("ct", work(g, 6, {work(g, 5, {g.output(head, 1), b}, 1, 4), a}, 1, 4));
  EXPECT_EQ(text(run(g, Rematerialise::kAuto, 16).graph), "1(x) 2(1) 3(2) 4(3,seed) 1(x) 2(1) 5(4.1,2) 6(5,1)");
  EXPECT_EQ(describe_saved(g, context(Rematerialise::kAuto, 16)).saved_bytes, 16);
  EXPECT_FALSE(describe_saved(g, context(Rematerialise::kAuto, 15)).within_budget);
}

TEST(Rematerialise, WhatTheBackwardPassBuildsFromPrimalsAloneIsNotSaved) {
  Graph g(table());
  const ValueId x = g.add_leaf(LeafKind::kInput, "x", vector_type(4)), a = work(g, 1, {x}, 1, 4);
  g.add_output("loss", work(g, 2, {a}, 1, 4));
  const ValueId seed = g.add_leaf(LeafKind::kSeed, "seed", vector_type(4));
  const ValueId ct = work(g, 3, {seed}, 1, 4), wide = work(g, 4, {a}, 1, 400);
  g.add_output("ct", work(g, 5, {ct, wide}, 1, 4));
  EXPECT_EQ(describe_saved(g, context(Rematerialise::kNone)).saved_bytes, 32);
  // A metric reads it too: now it belongs to the forward pass, wherever it stands.
  g.add_output("metric", work(g, 6, {wide}, 1, 4));
  EXPECT_EQ(describe_saved(g, context(Rematerialise::kNone)).saved_bytes, 3200);
}

TEST(Rematerialise, FullKeepsOneValuePerLayerBoundary) {
  const Graph g = layered(4, 12);
  const RematerialisationChoice choice = choose_rematerialisation(g, context(Rematerialise::kFull));
  // The embedding, and the result of each of the four layers.
  EXPECT_EQ(choice.report.num_saved, 5U);
  EXPECT_EQ(choice.report.saved_bytes, 5 * 64);
  EXPECT_EQ(choice.report.num_recomputed, 4U * 11);
  const Rewritten rewritten = run(g, Rematerialise::kFull);
  EXPECT_EQ(evaluate(rewritten.graph), evaluate(g));
  const RematerialisationReport again = describe_saved(rewritten.graph, context(Rematerialise::kNone));
  EXPECT_EQ(again.saved_bytes, choice.report.saved_bytes);
}

TEST(Rematerialise, RewritesEvaluateToTheSameBits) {
  std::mt19937 rng(11);
  size_t num_copies = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const Graph g = random_graph(rng, 4 + static_cast<int>(rng() % 30), trial % 2 == 0).g;
    const auto expected = evaluate(g);
    const double all = describe_saved(g, context(Rematerialise::kNone)).saved_bytes;
    const auto budget = static_cast<size_t>(all * static_cast<double>(rng() % 11) / 10);
    for (const Rematerialise policy : {Rematerialise::kNone, Rematerialise::kSelective, Rematerialise::kFull, Rematerialise::kAuto}) {
      const Rewritten rewritten = run(g, policy, budget);
      ASSERT_EQ(evaluate(rewritten.graph), expected) << trial;
      const Status verified = verify(rewritten.graph);
      ASSERT_TRUE(bool(verified)) << verified.error().message;
      const RematerialisationReport report = describe_saved(g, context(policy, budget));
      // What the rewritten graph saves is what was said; and it runs again what was said, apart from originals that only moved.
      EXPECT_EQ(describe_saved(rewritten.graph, context(Rematerialise::kNone)).saved_bytes, report.saved_bytes)
          << trial << " " << int(policy);
      EXPECT_LE(report.saved_bytes, all + (policy == Rematerialise::kFull ? INFINITY : 0));
      for (const ValueId v : rewritten.map.values) EXPECT_TRUE(v.valid());
      if (policy == Rematerialise::kNone) {
        EXPECT_EQ(text(rewritten.graph), text(g));
      }
      num_copies += report.num_recomputed;
    }
  }
  EXPECT_GT(num_copies, 2000U);
}

}  // namespace
}  // namespace glim
