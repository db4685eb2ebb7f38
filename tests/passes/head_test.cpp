// The head with the real ops: linear, scale, softcap, cross_entropy -> linear_cross_entropy; with its vjp -> linear_cross_entropy_grad.
#include <algorithm>
#include <random>

#include "autodiff/gradients.h"
#include "engine/passes/fuse.h"
#include "engine/passes/pass_list.h"
#include "ops/builtin_ops.h"
#include "tests/passes/golden.h"

namespace glim {
namespace {

const std::string kLeaves =
    "%0 = input \"h\" : f32[6,4]\n"
    "%1 = parameter \"lm_head\" : f32[9,4]\n"
    "%2 = input \"labels\" : i32[6]\n"
    "%3 = input \"denominator\" : f32[1]\n";
const std::string kOutputTypes = " : f32[1], f32[1], i64[1], i64[1], f32[6], i32[6], f32[6]\n";

// The chain with a line in the middle and lines at the end; as print writes it.
std::string chain(const std::string& end = "") {
  return kLeaves +
         "%4 = linear(%0, %1, _) : f32[6,9]\n"
         "%5 = scale(%4) {factor=0.5} : f32[6,9]\n"
         "%6 = softcap(%5) {cap=20} : f32[6,9]\n"
         "%7, %8, %9, %10, %11, %12, %13 = cross_entropy(%6, %2, %3) {reduction=sum}" +
         kOutputTypes + end + "output \"loss\" = %7\noutput \"num_correct\" = %9\n";
}

TEST(Head, BecomesOneNode) {
  expect_rewrite(fuse_forward, builtin_ops(), chain(),
                 kLeaves +
                     "%4, %5, %6, %7, %8, %9, %10 = linear_cross_entropy(%0, %1, %2, %3) {multiplier=0.5, softcap=20, reduction=sum}" +
                     kOutputTypes + "output \"loss\" = %4\noutput \"num_correct\" = %6\n");
}
TEST(Head, BecomesOneNodeWithoutScaleAndSoftcap) {
  expect_rewrite(fuse_forward, builtin_ops(),
                 kLeaves +
                     "%4 = linear(%0, %1)\n%5, %6, %7, %8, %9, %10, %11 = cross_entropy(%4, %2) {ignore_index=7, chunk_rows=2}\noutput "
                     "\"loss\" = %5\n",
                 kLeaves + "%4, %5, %6, %7, %8, %9, %10 = linear_cross_entropy(%0, %1, %2, _) {ignore_index=7, chunk_rows=2}" +
                     kOutputTypes + "output \"loss\" = %4\n");
}
TEST(Head, StaysWhenLogitsAreAnOutput) { expect_unchanged(fuse_forward, builtin_ops(), chain("output \"logits\" = %6\n")); }
TEST(Head, StaysWhenUncappedLogitsAreAnOutput) { expect_unchanged(fuse_forward, builtin_ops(), chain("output \"raw\" = %4\n")); }
TEST(Head, StaysWhenScaleHasTwoConsumers) { expect_unchanged(fuse_forward, builtin_ops(), chain("%14 = add(%5, %5) : f32[6,9]\n")); }
TEST(Head, StaysWithABias) {
  expect_unchanged(fuse_forward, builtin_ops(),
                   kLeaves +
                       "%4 = parameter \"bias\" : f32[9]\n%5 = linear(%0, %1, %4) : f32[6,9]\n"
                       "%6, %7, %8, %9, %10, %11, %12 = cross_entropy(%5, %2, _)" +
                       kOutputTypes + "output \"loss\" = %6\n");
}
TEST(Head, StaysInAnotherOrder) {  // softcap before scale is another function
  expect_unchanged(fuse_forward, builtin_ops(),
                   kLeaves +
                       "%4 = linear(%0, %1, _) : f32[6,9]\n%5 = softcap(%4) {cap=20} : f32[6,9]\n%6 = scale(%5) {factor=0.5} : f32[6,9]\n"
                       "%7, %8, %9, %10, %11, %12, %13 = cross_entropy(%6, %2, _)" +
                       kOutputTypes + "output \"loss\" = %7\n");
}
// One head that is read and one that is not: the forward list leaves the first one alone.
TEST(Head, ASecondChainForTheLogitsDoesNotHinderTheLoss) {
  const Graph graph = read_graph(
      chain("%14 = linear(%0, %1)\n%15 = scale(%14) {factor=0.5}\n%16 = softcap(%15) {cap=20}\noutput \"logits\" = %16\n"), builtin_ops());
  const Result<Graph> lowered = run_passes(graph, forward_passes(), {}, {});
  const std::string text = print(*lowered);
  EXPECT_NE(text.find("linear_cross_entropy("), std::string::npos) << text;
  EXPECT_EQ(text.find(" cross_entropy("), std::string::npos) << text;
}

// ---- after autodiff
// Adds the gradients of the loss as outputs.
Graph differentiate(Graph graph, std::initializer_list<ValueId> wrt, ValueId seed) {
  const Seeded seeds[] = {{graph.find_output("loss"), seed}};
  Result<std::vector<ValueId>> cotangents = gradients(graph, seeds, std::span<const ValueId>(wrt.begin(), wrt.size()));
  GLIM_CHECK(bool(cotangents), cotangents.error().to_string());
  for (size_t k = 0; k < cotangents->size(); ++k) graph.add_output("ct_" + graph.leaf(wrt.begin()[k]).name, (*cotangents)[k]);
  return graph;
}
Graph fused_head() { return std::move(fuse_forward(read_graph(chain(), builtin_ops()), {})->graph); }
std::string joint_text(Graph graph) {
  const Result<Graph> joint = run_passes(std::move(graph), joint_passes(), {}, {});
  GLIM_CHECK(bool(joint), joint.error().to_string());
  return print(*joint);
}

TEST(JointHead, ForwardAndVjpBecomeOneNode) {
  Graph graph = fused_head();
  const ValueId seed = graph.add_leaf(LeafKind::kSeed, "ct_loss", {DType::kF32, {1}});
  const std::string text = joint_text(differentiate(std::move(graph), {{0}, {1}}, seed));
  EXPECT_EQ(text, kLeaves +
                      "%4 = seed \"ct_loss\" : f32[1]\n"
                      "%5, %6, %7, %8, %9, %10, %11, %12, %13 = linear_cross_entropy_grad(%0, %1, %2, %3, %4, _) {multiplier=0.5, "
                      "softcap=20, reduction=sum} "
                      ": f32[1], f32[1], i64[1], i64[1], f32[6], i32[6], f32[6], f32[6,4], f32[9,4]\n"
                      "output \"loss\" = %5\noutput \"num_correct\" = %7\noutput \"ct_h\" = %12\noutput \"ct_lm_head\" = %13\n");
}
TEST(JointHead, AFrozenWeightCostsNoGradient) {
  Graph graph = fused_head();
  const ValueId seed = graph.add_leaf(LeafKind::kSeed, "ct_loss", {DType::kF32, {1}});
  const std::string text = joint_text(differentiate(std::move(graph), {{0}}, seed));
  EXPECT_NE(text.find("linear_cross_entropy_grad("), std::string::npos) << text;
  EXPECT_NE(text.find("weight_gradient=false"), std::string::npos) << text;
}
// A cotangent that depends on the node's own loss: the vjp recomputes instead.
TEST(JointHead, StaysApartWhenTheCotangentDependsOnTheLoss) {
  Graph graph = fused_head();
  const ValueId in[] = {graph.find_output("loss"), graph.find_output("loss")};
  const ValueId seed = graph.output(*graph.emit(*builtin_ops().find("add"), in, std::span<const uint32_t>{}));
  const std::string text = joint_text(differentiate(std::move(graph), {{0}, {1}}, seed));
  EXPECT_EQ(text.find("linear_cross_entropy_grad("), std::string::npos) << text;
  EXPECT_NE(text.find("linear_cross_entropy_vjp("), std::string::npos) << text;
}
// Main gradients: the sum moves into the node, which then works in the accumulator's buffer.
TEST(JointHead, AccumulatesIntoTheMainGradient) {
  Graph graph = fused_head();
  const ValueId seed = graph.add_leaf(LeafKind::kSeed, "ct_loss", {DType::kF32, {1}});
  const ValueId accumulator = graph.add_leaf(LeafKind::kGradient, "grad.lm_head", {DType::kF32, {9, 4}});
  const Seeded seeds[] = {{graph.find_output("loss"), seed}};
  const ValueId wrt[] = {ValueId{0}, ValueId{1}};
  const Result<std::vector<ValueId>> cotangents = gradients(graph, seeds, wrt);
  ASSERT_TRUE(cotangents);
  graph.add_output("ct_h", (*cotangents)[0]);
  const ValueId terms[] = {accumulator, (*cotangents)[1]};
  graph.add_update(accumulator, graph.output(*graph.emit(*builtin_ops().find("add"), terms, std::span<const uint32_t>{})));
  const std::string text = joint_text(std::move(graph));
  EXPECT_NE(text.find("linear_cross_entropy_grad(%0, %1, %2, %3, %4, %5)"), std::string::npos) << text;
  EXPECT_EQ(text.find("= add("), std::string::npos) << text;
}

// The backward of a pack is one product per gradient by itself.
TEST(RealOps, PackedLinearsHaveOneProductPerGradient) {
  const Graph graph = read_graph(
      "%0 = parameter \"x\" : f32[5,3]\n%1 = parameter \"gate\" : f32[4,3]\n%2 = parameter \"up\" : f32[4,3]\n"
      "%3 = linear(%0, %1)\n%4 = linear(%0, %2)\n%5 = swiglu(%3, %4)\noutput \"loss\" = %5\n",
      builtin_ops());
  Result<Graph> packed = run_passes(graph, forward_passes(), {}, {});
  ASSERT_TRUE(packed);
  const ValueId seed = packed->add_leaf(LeafKind::kSeed, "ct", {DType::kF32, {5, 4}});
  const Result<Graph> joint =
      run_passes(differentiate(*std::move(packed), {graph.find_leaf("x"), graph.find_leaf("gate"), graph.find_leaf("up")}, seed),
                 joint_passes(), {}, {});
  ASSERT_TRUE(joint);
  int products = 0;
  for (uint32_t n = 0; n < joint->num_nodes(); ++n)
    products += joint->def({n}).role == Role::kLinear || joint->def({n}).role == Role::kMatmul ? 1 : 0;
  EXPECT_EQ(products, 3) << print(*joint);  // not 6
}

// Damaged text over the real table: attributes are hostile too, and every infer must say so without overflowing.
TEST(RealOps, ExtremeAttributesAreErrors) {
  constexpr int64_t kExtremes[] = {INT64_MIN, INT64_MIN + 1, -1, 0, 1, 2, 3, INT64_C(1) << 31, INT64_C(1) << 62, INT64_MAX - 1, INT64_MAX};
  std::mt19937_64 random(5);
  const std::vector<TensorType> types = {{DType::kF32, {6, 4}}, {DType::kF32, {4}}, {DType::kF32, {1}},
                                         {DType::kI32, {6}},    {DType::kI64, {1}}, {DType::kBF16, {6, 4}}};
  for (uint16_t row = 1; row < builtin_ops().size(); ++row) {
    const OpDef& def = builtin_ops()[OpId{row}];
    for (int k = 0; k < 400; ++k) {
      Graph graph(builtin_ops());
      std::vector<ValueId> in;
      for (size_t operand = 0; operand < std::max<size_t>(def.operands.size(), 1); ++operand) {
        in.push_back(graph.add_leaf(LeafKind::kParameter, std::to_string(operand), types[k % 2 == 0 ? 0 : random() % types.size()]));
      }
      if (def.operands.empty()) in.clear();
      std::vector<uint32_t> words = default_words(def.attrs);
      for (size_t attr = 0; attr < def.attrs.size(); ++attr) {
        if (def.attrs[attr].kind == AttrKind::kInteger && random() % 3 != 0)
          set_integer(words, attr, kExtremes[random() % std::size(kExtremes)]);
      }
      const Result<NodeId> node = graph.emit(OpId{row}, in, std::span<const uint32_t>(words));
      EXPECT_TRUE(!node || verify(graph)) << def.name;
    }
  }
}

}  // namespace
}  // namespace glim
