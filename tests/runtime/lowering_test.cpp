// Laws of the lowered head in whole models: no [T, V] value anywhere, a bounded workspace, logits on demand.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/builtin_ops.h"
#include "runtime/compile.h"
#include "runtime/model_source.h"
#include "runtime/training_plan.h"

namespace glim {
namespace {

constexpr int64_t kTokens = 2560, kVocabulary = 5000, kHidden = 256;  // more rows than a chunk; no other extent of the model is 5,000

CompileOptions training_options() {
  CompileOptions options;
  options.runtime_dims = {{"T", kTokens}, {"G", 1}, {"R", 1}};
  options.optional_inputs = {"denominator"};
  options.programs = {ProgramKind::kForward, ProgramKind::kFirst, ProgramKind::kNext, ProgramKind::kUpdate};
  return options;
}

Result<CompiledModel> compile_tiny(const CompileOptions& options, const std::vector<std::string>& more = {}) {
  std::vector<std::string> settings{"vocab=5000", "num_layers=2"};
  settings.insert(settings.end(), more.begin(), more.end());
  GLIM_ASSIGN(const ModelSource source, open_model(GLIM_SOURCE_DIR "/models/muse_glimmer_tiny.toml", settings, ""));
  return compile(source.spec, builtin_ops(), options);
}

int num_logits(const Graph& graph) {
  int count = 0;
  for (uint32_t v = 0; v < graph.num_values(); ++v) {
    const Shape& shape = graph.type({v}).shape;
    count += shape.rank == 2 && shape[0] == kTokens && shape[1] == kVocabulary ? 1 : 0;
  }
  return count;
}

TEST(LoweredHead, NoProgramHoldsLogits) {
  const Result<CompiledModel> model = compile_tiny(training_options());
  ASSERT_TRUE(model) << model.error().to_string();
  for (const auto& program : model->programs) {
    EXPECT_EQ(num_logits(program->graph), 0) << program->name;
    EXPECT_LT(program->plan.bytes(Arena::kActivations), size_t{4} * kTokens * kVocabulary * 4) << program->name;
    if (program->name == "update") continue;
    bool has_head = false;
    for (uint32_t n = 0; n < program->graph.num_nodes(); ++n) {
      if (!program->graph.def({n}).name.starts_with("linear_cross_entropy")) continue;
      has_head = true;
      EXPECT_LE(program->graph.cost({n}).workspace_bytes,
                size_t{2048} * (kVocabulary + 2 * kHidden) * sizeof(float) + kTokens * sizeof(int32_t) + size_t{6} * 256);
    }
    EXPECT_TRUE(has_head) << program->name;
  }
  CompileOptions plain = training_options();
  plain.driver.disabled = {"fuse_forward"};
  const Result<CompiledModel> unfused = compile_tiny(plain);
  ASSERT_TRUE(unfused) << unfused.error().to_string();
  EXPECT_GT(num_logits(unfused->find(ProgramKind::kFirst)->graph), 3);  // the test can see them
}

TEST(LoweredHead, LogitsAreThereForWhoAsks) {
  CompileOptions options = training_options();
  options.programs = {ProgramKind::kForward};
  options.outputs = {"loss", "token_accuracy", "logits"};
  const Result<CompiledModel> model = compile_tiny(options);
  ASSERT_TRUE(model) << model.error().to_string();
  const Graph& graph = model->programs[0]->graph;
  ASSERT_TRUE(graph.find_output("logits").valid());
  EXPECT_EQ(graph.type(graph.find_output("logits")).shape, (Shape{kTokens, kVocabulary}));
}

TEST(LoweredHead, TiedWeightsStayLowered) {
  const Result<CompiledModel> model = compile_tiny(training_options(), {"tie_word_embeddings=true"});
  ASSERT_TRUE(model) << model.error().to_string();
  for (const auto& program : model->programs) EXPECT_EQ(num_logits(program->graph), 0) << program->name;
}

// Packed weights and their gradients lie side by side: no concat or split has a kernel to run, in any training program.
TEST(Packing, CopiesNothing) {
  const Result<CompiledModel> model = compile_tiny(training_options());
  ASSERT_TRUE(model) << model.error().to_string();
  int num_packs = 0;
  for (const auto& program : model->programs) {
    for (uint32_t n = 0; n < program->graph.num_nodes(); ++n) {
      const Role role = program->graph.def({n}).role;
      if (role != Role::kConcat && role != Role::kSplit) continue;
      ++num_packs;
      EXPECT_FALSE(program->plan.node_runs[n]) << program->name << ": " << program->graph.describe_origin({n});
    }
    EXPECT_TRUE(program->plan.copies_after.empty()) << program->name;
    EXPECT_TRUE(program->plan.copies_before.empty()) << program->name;
  }
  EXPECT_GE(num_packs, 2 * 4 * 3);
}

TEST(Plan, ThirtyBillionParameters) {
  const Result<ModelSource> source = open_model(GLIM_SOURCE_DIR "/models/muse_glimmer_30b.toml", {}, "");
  ASSERT_TRUE(source) << source.error().to_string();
  const Result<TrainingPlan> plan = plan_training(source->spec, builtin_ops(), {});
  ASSERT_TRUE(plan) << plan.error().to_string();
  EXPECT_EQ(plan->num_parameters, 27'854'780'928);
  ASSERT_EQ(plan->policies.size(), 4U);
  const double bytes = 27'854'780'928.0;
  for (const PolicyPlan& policy : plan->policies) {  // bf16 weights, f32 gradients, master weights and two moments
    EXPECT_NEAR(static_cast<double>(policy.arena_bytes[static_cast<size_t>(Arena::kParameters)]), 2 * bytes, 1e6);
    EXPECT_NEAR(static_cast<double>(policy.arena_bytes[static_cast<size_t>(Arena::kGradients)]), 4 * bytes, 1e6);
    EXPECT_NEAR(static_cast<double>(policy.arena_bytes[static_cast<size_t>(Arena::kOptimizer)]), 12 * bytes, 1e6);
  }
  // Each policy saves what it says: the activations arena follows the saved primals.
  const auto activations = [&](size_t k) { return plan->policies[k].arena_bytes[static_cast<size_t>(Arena::kActivations)]; };
  EXPECT_LT(activations(1), activations(0));
  EXPECT_LT(activations(2), activations(1) / 4);
  EXPECT_LE(plan->policies[3].saved_bytes, plan->policies[0].saved_bytes / 2);
  EXPECT_LT(plan->graph_bytes, size_t{300} << 20);
  // Products of one token, forward: every weight once but the embedding; attention sees half of T, or the window.
  const double linears = 2 * (bytes - 2 * 202048.0 * 6656), tokens = 8192, width = 4096;
  const double full = 13 * 4 * width * tokens / 2, window = 39 * 4 * width * (2048 - 2048.0 * 2048 / 2 / tokens);
  EXPECT_NEAR(plan->forward_flops / tokens / (linears + full + window), 1.0, 0.002);
}

}  // namespace
}  // namespace glim
