// The fusion patterns of gates and products, and the passes around them, on the real ops: each with its negative twins.
#include "engine/passes/fuse.h"
#include "engine/passes/hoist_over_split.h"
#include "engine/passes/order.h"
#include "ops/add/add.h"
#include "ops/builtin_ops.h"
#include "ops/rms_norm/rms_norm.h"
#include "tests/passes/golden.h"

namespace glim {
namespace {

const std::string kTwo = "%0 = input \"a\" : f32[4,6]\n%1 = input \"b\" : f32[4,6]\n";

TEST(Gates, MulOfASigmoidBecomesAGate) {
  expect_rewrite(fuse_forward, builtin_ops(), kTwo + "%2 = sigmoid(%1)\n%3 = mul(%0, %2)\noutput \"y\" = %3\n",
                 kTwo + "%2 = sigmoid_gate(%0, %1) : f32[4,6]\noutput \"y\" = %2\n");
  expect_rewrite(fuse_forward, builtin_ops(), kTwo + "%2 = sigmoid(%1)\n%3 = mul(%2, %0)\noutput \"y\" = %3\n",
                 kTwo + "%2 = sigmoid_gate(%0, %1) : f32[4,6]\noutput \"y\" = %2\n");
}
TEST(Gates, StayWhenTheSigmoidIsReadTwice) {
  expect_unchanged(fuse_forward, builtin_ops(),
                   kTwo + "%2 = sigmoid(%1) : f32[4,6]\n%3 = mul(%0, %2) : f32[4,6]\n%4 = add(%2, %3) : f32[4,6]\noutput \"y\" = %4\n");
}
TEST(Gates, StayWhenTheSigmoidIsAnOutput) {
  expect_unchanged(fuse_forward, builtin_ops(),
                   kTwo + "%2 = sigmoid(%1) : f32[4,6]\n%3 = mul(%0, %2) : f32[4,6]\noutput \"y\" = %3\noutput \"s\" = %2\n");
}
TEST(Gates, SiluTimesUpBecomesSwiglu) {
  expect_rewrite(fuse_forward, builtin_ops(), kTwo + "%2 = sigmoid(%0)\n%3 = mul(%0, %2)\n%4 = mul(%3, %1)\noutput \"y\" = %4\n",
                 kTwo + "%2 = swiglu(%0, %1) : f32[4,6]\noutput \"y\" = %2\n");
}
TEST(Gates, AGateOfAnotherValueIsNoSilu) {
  expect_rewrite(fuse_forward, builtin_ops(), kTwo + "%2 = sigmoid(%1)\n%3 = mul(%0, %2)\n%4 = mul(%3, %1)\noutput \"y\" = %4\n",
                 kTwo + "%2 = sigmoid_gate(%0, %1) : f32[4,6]\n%3 = mul(%2, %1) : f32[4,6]\noutput \"y\" = %3\n");
}

const std::string kRows =
    "%0 = input \"x\" : f32[4,6]\n%1 = input \"y\" : f32[4,6]\n%2 = parameter \"w\" : f32[6]\n%3 = parameter \"v\" : f32[6]\n";
const std::string kPostNorm = "%4 = rms_norm(%1, %2) {eps=1e-08, weight_offset=1} : f32[4,6]\n";

TEST(Residual, SumOfANormAndItsNormBecomeOneNode) {
  for (const char* sum : {"add(%0, %4)", "add(%4, %0)"}) {
    expect_rewrite(fuse_forward, builtin_ops(),
                   kRows + kPostNorm + "%5 = " + sum + "\n%6 = rms_norm(%5, %3) {eps=0.5}\noutput \"h\" = %5\noutput \"a\" = %6\n",
                   kRows +
                       "%4, %5 = residual_norm(%0, %1, %2, %3) {eps=1e-08, weight_offset=1, next_eps=0.5} : f32[4,6], f32[4,6]\n"
                       "output \"h\" = %4\noutput \"a\" = %5\n");
  }
}
TEST(Residual, WithoutASecondNorm) {
  expect_rewrite(fuse_forward, builtin_ops(), kRows + kPostNorm + "%5 = add(%0, %4)\noutput \"h\" = %5\n",
                 kRows + "%4 = residual_norm(%0, %1, %2, _) {eps=1e-08, weight_offset=1} : f32[4,6]\noutput \"h\" = %4\n");
}
TEST(Residual, TheNormOfTheNextLayerStaysThere) {
  Graph graph = read_graph(kRows, builtin_ops());
  const ValueId x = graph.find_leaf("x"), y = graph.find_leaf("y"), w = graph.find_leaf("w"), v = graph.find_leaf("v");
  graph.set_origin({graph.intern("decoder.0"), 0, 1, 1});
  const ValueId sum = ops::add(graph, x, ops::rms_norm(graph, y, w, 0.25));
  graph.set_origin({graph.intern("decoder.1"), 0, 1, 1});
  graph.add_output("a", ops::rms_norm(graph, sum, v, 0.5));
  EXPECT_EQ(after(fuse_forward, graph), kRows +
                                            "%4 = residual_norm(%0, %1, %2, _) {eps=0.25} : f32[4,6]\n"
                                            "%5 = rms_norm(%4, %3) {eps=0.5} : f32[4,6]\noutput \"a\" = %5\n");
}
TEST(Residual, StaysWhenTheFirstNormIsReadTwice) {
  expect_unchanged(fuse_forward, builtin_ops(),
                   kRows + kPostNorm +
                       "%5 = add(%0, %4) : f32[4,6]\n%6 = rms_norm(%5, %3) {eps=0.5} : f32[4,6]\noutput \"o\" = %4\noutput \"a\" = %6\n");
}
TEST(Residual, NormsOfHeadsStay) {
  expect_unchanged(fuse_forward, builtin_ops(),
                   kRows + "%4 = rms_norm(%1, _) {eps=0.5, group=3} : f32[4,6]\n%5 = add(%0, %4) : f32[4,6]\noutput \"h\" = %5\n");
  expect_rewrite(fuse_forward, builtin_ops(),
                 kRows + kPostNorm + "%5 = add(%0, %4)\n%6 = rms_norm(%5) {eps=0.5, group=3}\noutput \"a\" = %6\n",
                 kRows +
                     "%4 = residual_norm(%0, %1, %2, _) {eps=1e-08, weight_offset=1} : f32[4,6]\n"
                     "%5 = rms_norm(%4, _) {eps=0.5, group=3} : f32[4,6]\noutput \"a\" = %5\n");
}

const std::string kTable = "%0 = input \"ids\" : i32[4]\n%1 = parameter \"w\" : f32[9,6]\n%2 = parameter \"v\" : f32[6]\n";
const std::string kLookUp = "%3 = embedding(%0, %1) {padding_index=5} : f32[4,6]\n";

TEST(EmbeddingNorm, RowsAndTheirNormBecomeOneNode) {
  expect_rewrite(fuse_forward, builtin_ops(), kTable + kLookUp + "%4 = rms_norm(%3) {eps=0.5}\noutput \"x\" = %4\n",
                 kTable + "%3 = embedding_norm(%0, %1) {padding_index=5, eps=0.5} : f32[4,6]\noutput \"x\" = %3\n");
}
TEST(EmbeddingNorm, StaysWhenTheRowsAreReadTwice) {
  expect_unchanged(fuse_forward, builtin_ops(),
                   kTable + kLookUp + "%4 = rms_norm(%3, _) {eps=0.5} : f32[4,6]\n%5 = mul(%3, %4) : f32[4,6]\noutput \"x\" = %5\n");
}
TEST(EmbeddingNorm, StaysWhenTheRowsAreAnOutput) {
  expect_unchanged(fuse_forward, builtin_ops(),
                   kTable + kLookUp + "%4 = rms_norm(%3, _) {eps=0.5} : f32[4,6]\noutput \"rows\" = %3\noutput \"x\" = %4\n");
}
TEST(EmbeddingNorm, NormsWithAWeightOrOfGroupsStay) {
  for (const char* norm : {"rms_norm(%3, %2) {eps=0.5}", "rms_norm(%3, _) {eps=0.5, group=3}"})
    expect_unchanged(fuse_forward, builtin_ops(), kTable + kLookUp + "%4 = " + norm + " : f32[4,6]\noutput \"x\" = %4\n");
}

const std::string kHeads = "%0 = input \"q\" : f32[4,6]\n%1 = input \"at\" : i32[4]\n";
const std::string kHeadNorm = "%2 = rms_norm(%0, _) {eps=0.5, group=2} : f32[4,6]\n";
const std::string kScaled = "%3 = scale(%2) {factor=4} : f32[4,6]\n";

TEST(QueryKeyNorm, NormScaleAndRopeBecomeOneNode) {
  expect_rewrite(fuse_forward, builtin_ops(),
                 kHeads + kHeadNorm + kScaled + "%4 = rope(%3, %1) {head_dim=2, theta=100}\noutput \"o\" = %4\n",
                 kHeads + "%2 = qk_norm(%0, %1) {eps=0.5, head_dim=2, factor=4, theta=100} : f32[4,6]\noutput \"o\" = %2\n");
  expect_rewrite(fuse_forward, builtin_ops(), kHeads + kHeadNorm + "%3 = rope(%2, %1) {head_dim=2, theta=100}\noutput \"o\" = %3\n",
                 kHeads + "%2 = qk_norm(%0, %1) {eps=0.5, head_dim=2, theta=100} : f32[4,6]\noutput \"o\" = %2\n");
  expect_rewrite(fuse_forward, builtin_ops(), kHeads + kHeadNorm + kScaled + "output \"o\" = %3\n",
                 kHeads + "%2 = qk_norm(%0, _) {eps=0.5, head_dim=2, factor=4} : f32[4,6]\noutput \"o\" = %2\n");
}
TEST(QueryKeyNorm, StaysWhenItsNormIsReadTwice) {
  expect_unchanged(fuse_forward, builtin_ops(),
                   kHeads + kHeadNorm + "%3 = rope(%2, %1) {head_dim=2, theta=100} : f32[4,6]\noutput \"n\" = %2\noutput \"o\" = %3\n");
}
TEST(QueryKeyNorm, NeedsHeadsThatAreTheNormsGroups) {
  expect_unchanged(fuse_forward, builtin_ops(),
                   kHeads + kHeadNorm + "%3 = rope(%2, %1) {head_dim=6, theta=100} : f32[4,6]\noutput \"o\" = %3\n");
}
TEST(QueryKeyNorm, NormsWithAWeightAndTurningBackStay) {
  expect_unchanged(fuse_forward, builtin_ops(),
                   kHeads +
                       "%2 = parameter \"w\" : f32[2]\n%3 = rms_norm(%0, %2) {eps=0.5, group=2} : f32[4,6]\n"
                       "%4 = rope(%3, %1) {head_dim=2, theta=100} : f32[4,6]\noutput \"o\" = %4\n");
  expect_unchanged(fuse_forward, builtin_ops(),
                   kHeads + kHeadNorm + "%3 = rope(%2, %1) {head_dim=2, theta=100, inverse=true} : f32[4,6]\noutput \"o\" = %3\n");
}

const std::string kFork =
    "%0 = input \"x\" : f32[4,6]\n%1 = parameter \"w\" : f32[6]\n%2 = input \"ct\" : f32[4,6]\n%3 = input \"more\" : f32[4,6]\n";
const std::string kNormVjp = "%4, %5 = rms_norm_vjp(%0, %1, %2, _) {eps=0.5} : f32[4,6], f32[6]\n";

TEST(NormCotangent, TakesInWhatIsAddedToIt) {
  for (const char* sum : {"add(%3, %4)", "add(%4, %3)"}) {
    expect_rewrite(fuse_joint, builtin_ops(), kFork + kNormVjp + "%6 = " + sum + "\noutput \"ct_w\" = %5\noutput \"ct_x\" = %6\n",
                   kFork +
                       "%4, %5 = rms_norm_vjp(%0, %1, %2, %3) {eps=0.5} : f32[4,6], f32[6]\n"
                       "output \"ct_w\" = %5\noutput \"ct_x\" = %4\n");
  }
}
TEST(NormCotangent, StaysWhenReadTwiceOrWhenItIsTheWeights) {
  expect_unchanged(fuse_joint, builtin_ops(),
                   kFork + kNormVjp + "%6 = add(%3, %4) : f32[4,6]\noutput \"alone\" = %4\noutput \"ct_x\" = %6\n");
  expect_unchanged(fuse_joint, builtin_ops(), kFork + kNormVjp + "%6 = add(%1, %5) : f32[6]\noutput \"ct_w\" = %6\n");
}

const std::string kScatter = "%0 = input \"ct\" : bf16[8,4]\n%1 = input \"ids\" : i32[8]\n%2 = gradient \"gradient.w\" : f32[9,4]\n";

TEST(Scatter, WidensAndAddsIntoTheMainGradient) {
  expect_rewrite(fuse_joint, builtin_ops(),
                 kScatter + "%3 = scatter_add_rows(%0, %1) {num_rows=9}\n%4 = cast(%3) {dtype=f32}\n%5 = add(%2, %4)\nupdate %2 = %5\n",
                 kScatter + "%3 = scatter_add_rows(%0, %1, %2) {num_rows=9, wide_output=true} : f32[9,4]\nupdate %2 = %3\n");
}
TEST(Scatter, StaysWhenReadTwiceOrWhenTheGradientIs) {
  expect_unchanged(fuse_joint, builtin_ops(),
                   kScatter +
                       "%3 = scatter_add_rows(%0, %1, _) {num_rows=9} : bf16[9,4]\n%4 = cast(%3) {dtype=f32} : f32[9,4]\n"
                       "output \"y\" = %3\nupdate %2 = %4\n");
  expect_unchanged(fuse_joint, builtin_ops(),
                   kScatter +
                       "%3 = scatter_add_rows(%0, %1, _) {num_rows=9, wide_output=true} : f32[9,4]\n%4 = add(%2, %3) : f32[9,4]\n"
                       "output \"before\" = %2\nupdate %2 = %4\n");
}

const std::string kProduct = "%0 = input \"ct\" : bf16[8,4]\n%1 = input \"x\" : bf16[8,6]\n%2 = gradient \"gradient.w\" : f32[4,6]\n";

TEST(Product, WidensAndAddsIntoTheMainGradient) {
  expect_rewrite(fuse_joint, builtin_ops(),
                 kProduct + "%3 = matmul(%0, %1) {transpose_a=true}\n%4 = cast(%3) {dtype=f32}\n%5 = add(%2, %4)\nupdate %2 = %5\n",
                 kProduct + "%3 = matmul(%0, %1, %2) {transpose_a=true, wide_output=true} : f32[4,6]\nupdate %2 = %3\n");
}
TEST(Product, StaysNarrowWhenReadTwice) {
  expect_unchanged(fuse_joint, builtin_ops(),
                   kProduct +
                       "%3 = matmul(%0, %1, _) {transpose_a=true} : bf16[4,6]\n%4 = cast(%3) {dtype=f32} : f32[4,6]\noutput \"y\" = "
                       "%3\nupdate %2 = %4\n");
}
TEST(Product, DoesNotAddIntoWhatSomebodyElseReads) {
  const std::string tail = "%4 = add(%2, %3) : f32[4,6]\noutput \"before\" = %2\nupdate %2 = %4\n";
  expect_unchanged(fuse_joint, builtin_ops(), kProduct + "%3 = matmul(%0, %1, _) {transpose_a=true, wide_output=true} : f32[4,6]\n" + tail);
}
TEST(Product, DoesNotAddIntoAnInput) {
  expect_unchanged(fuse_joint, builtin_ops(),
                   "%0 = input \"ct\" : f32[8,4]\n%1 = input \"x\" : f32[8,6]\n%2 = input \"y\" : f32[4,6]\n%3 = matmul(%0, %1, _) "
                   "{transpose_a=true} : f32[4,6]\n"
                   "%4 = add(%2, %3) : f32[4,6]\noutput \"z\" = %4\n");
}

// The joined head: its weight gradient widens and adds in place just as a product's does.
const std::string kHead =
    "%0 = input \"h\" : bf16[6,4]\n%1 = parameter \"w\" : bf16[9,4]\n%2 = input \"labels\" : i32[6]\n%3 = seed \"seed\" : f32[1]\n"
    "%4 = gradient \"gradient.w\" : f32[9,4]\n";
const std::string kHeadValues = "%5, %6, %7, %8, %9, %10, %11, %12, %13 = linear_cross_entropy_grad(%0, %1, %2, _, %3, ";
const std::string kHeadTypes = " : f32[1], f32[1], i64[1], i64[1], f32[6], i32[6], f32[6], bf16[6,4], ";
const std::string kHeadEnd = "output \"loss\" = %5\noutput \"ct_h\" = %12\n";

TEST(HeadGradient, WidensAndAddsIntoTheMainGradient) {
  expect_rewrite(fuse_joint, builtin_ops(),
                 kHead + kHeadValues + "_)\n%14 = cast(%13) {dtype=f32}\n%15 = add(%4, %14)\n" + kHeadEnd + "update %4 = %15\n",
                 kHead + kHeadValues + "%4) {wide_weight_gradient=true}" + kHeadTypes + "f32[9,4]\n" + kHeadEnd + "update %4 = %13\n");
}
TEST(HeadGradient, StaysNarrowWhenReadTwice) {
  expect_unchanged(fuse_joint, builtin_ops(),
                   kHead + kHeadValues + "_)" + kHeadTypes + "bf16[9,4]\n%14 = cast(%13) {dtype=f32} : f32[9,4]\n" + kHeadEnd +
                       "output \"ct_w\" = %13\nupdate %4 = %14\n");
}
TEST(HeadGradient, DoesNotAddIntoWhatSomebodyElseReads) {
  expect_unchanged(fuse_joint, builtin_ops(),
                   kHead + kHeadValues + "_) {wide_weight_gradient=true}" + kHeadTypes + "f32[9,4]\n%14 = add(%4, %13) : f32[9,4]\n" +
                       kHeadEnd + "output \"before\" = %4\nupdate %4 = %14\n");
}

const std::string kPacked =
    "%0 = input \"ct\" : bf16[8,6]\n%1 = input \"x\" : bf16[8,5]\n%2 = gradient \"gradient.q\" : f32[4,5]\n%3 = gradient \"gradient.k\" : "
    "f32[2,5]\n";
const std::string kSplit =
    "%4 = matmul(%0, %1, _) {transpose_a=true} : bf16[6,5]\n%5, %6 = split(%4) {axis=0, size0=4, size1=2} : bf16[4,5], bf16[2,5]\n"
    "%7 = cast(%5) {dtype=f32} : f32[4,5]\n%8 = cast(%6) {dtype=f32} : f32[2,5]\n";

TEST(Hoist, PackedGradientsAccumulateInOneProduct) {
  const Graph graph =
      read_graph(kPacked + kSplit + "%9 = add(%2, %7)\n%10 = add(%3, %8)\nupdate %2 = %9\nupdate %3 = %10\n", builtin_ops());
  const Result<Rewritten> hoisted = hoist_over_split(graph, {});
  ASSERT_TRUE(hoisted);
  EXPECT_EQ(after(fuse_joint, hoisted->graph),
            kPacked +
                "%4 = concat(%2, %3) {axis=0} : f32[6,5]\n%5 = matmul(%0, %1, %4) {transpose_a=true, wide_output=true} : f32[6,5]\n"
                "%6, %7 = split(%5) {axis=0, size0=4, size1=2} : f32[4,5], f32[2,5]\nupdate %2 = %6\nupdate %3 = %7\n");
}
TEST(Hoist, CastsAlone) {
  EXPECT_EQ(after(hoist_over_split, read_graph(kPacked + kSplit + "update %2 = %7\nupdate %3 = %8\n", builtin_ops())),
            kPacked +
                "%4 = matmul(%0, %1, _) {transpose_a=true} : bf16[6,5]\n%5 = cast(%4) {dtype=f32} : f32[6,5]\n"
                "%6, %7 = split(%5) {axis=0, size0=4, size1=2} : f32[4,5], f32[2,5]\nupdate %2 = %6\nupdate %3 = %7\n");
}
TEST(Hoist, NotWhenAPartIsReadTwice) {
  expect_unchanged(hoist_over_split, builtin_ops(), kPacked + kSplit + "output \"q\" = %5\nupdate %2 = %7\nupdate %3 = %8\n");
}
TEST(Hoist, NotWhenAPartIsNotCast) {
  expect_unchanged(
      hoist_over_split, builtin_ops(),
      kPacked +
          "%4 = matmul(%0, %1, _) {transpose_a=true} : bf16[6,5]\n%5, %6 = split(%4) {axis=0, size0=4, size1=2} : bf16[4,5], bf16[2,5]\n"
          "%7 = cast(%5) {dtype=f32} : f32[4,5]\noutput \"k\" = %6\nupdate %2 = %7\n");
}
TEST(Hoist, NotAlongColumns) {
  expect_unchanged(hoist_over_split, builtin_ops(),
                   "%0 = input \"x\" : bf16[4,6]\n%1, %2 = split(%0) {axis=1, size0=4, size1=2} : bf16[4,4], bf16[4,2]\n%3 = cast(%1) "
                   "{dtype=f32} : f32[4,4]\n"
                   "%4 = cast(%2) {dtype=f32} : f32[4,2]\noutput \"a\" = %3\noutput \"b\" = %4\n");
}
TEST(Hoist, AdditionsOfOtherThingsStay) {
  const std::string wide =
      "%4 = matmul(%0, %1, _) {transpose_a=true, wide_output=true} : f32[6,5]\n%5, %6 = split(%4) {axis=0, size0=4, size1=2} : f32[4,5], "
      "f32[2,5]\n";
  expect_unchanged(
      hoist_over_split, builtin_ops(),
      kPacked + wide +
          "%7 = add(%2, %5) : f32[4,5]\n%8 = add(%3, %6) : f32[2,5]\noutput \"before\" = %3\nupdate %2 = %7\nupdate %3 = %8\n");
}

TEST(Order, AccumulationsFollowTheirOperands) {
  const std::string head = "%0 = gradient \"g\" : f32[2,2]\n%1 = input \"x\" : f32[2,2]\n";
  EXPECT_EQ(after(order, read_graph(head + "%2 = scale(%1) {factor=2}\n%3 = scale(%2) {factor=3}\n%4 = scale(%3) {factor=5}\n%5 = add(%0, "
                                           "%2)\noutput \"y\" = %4\nupdate %0 = %5\n",
                                    builtin_ops())),
            head +
                "%2 = scale(%1) {factor=2} : f32[2,2]\n%3 = add(%0, %2) : f32[2,2]\n%4 = scale(%2) {factor=3} : f32[2,2]\n%5 = scale(%4) "
                "{factor=5} : f32[2,2]\n"
                "output \"y\" = %5\nupdate %0 = %3\n");
}

}  // namespace
}  // namespace glim
