#include "models/derived.h"

#include <gtest/gtest.h>

#include "ops/builtin_ops.h"

namespace glim {
namespace {

using Values = std::vector<int32_t>;

std::vector<ModelInput> inputs_of(int64_t tokens, int64_t segments) {
  Result<ModelSpec> spec = load_spec(std::string(GLIM_SOURCE_DIR) + "/models/muse_glimmer_tiny.toml");
  EXPECT_TRUE(spec) << spec.error().to_string();
  BuildOptions options;
  options.runtime_dims = {{"T", tokens}, {"G", segments}};
  options.outputs = {"loss"};
  Result<BuiltModel> built = build(*spec, builtin_ops(), options);
  EXPECT_TRUE(built) << built.error().to_string();
  return built->inputs;
}

std::string error_of(int64_t tokens, int64_t segments, HostValues values) {
  const Status status = derive_inputs(inputs_of(tokens, segments), values);
  return status ? "accepted" : status.error().message;
}

TEST(Derived, OneDocument) {
  HostValues values{{"tokens", {5, 6, 7, 8}}, {"labels", {5, 6, 7, 8}}};
  ASSERT_TRUE(derive_inputs(inputs_of(4, 1), values));
  EXPECT_EQ(values["segments"], (Values{0, 4}));
  EXPECT_EQ(values["positions"], (Values{0, 1, 2, 3}));
  EXPECT_EQ(values["targets"], (Values{6, 7, 8, -100}));
}

TEST(Derived, RaggedRowsInABucketThatIsTooLarge) {
  HostValues values{{"tokens", {1, 2, 3, 4, 5, 6}}, {"labels", {1, 2, 3, -100, 5, 6}}, {"row_lengths", {3, 0, 1, 2}}};
  ASSERT_TRUE(derive_inputs(inputs_of(8, 5), values));
  EXPECT_EQ(values["segments"], (Values{0, 3, 4, 6, 6, 6}));
  EXPECT_EQ(values["positions"], (Values{0, 1, 2, 0, 0, 1, 0, 0}));
  EXPECT_EQ(values["targets"], (Values{2, 3, -100, -100, 6, -100, -100, -100}));
}

TEST(Derived, PackedDocumentsBeginWherePositionsRestart) {
  HostValues values{{"tokens", {1, 2, 3, 4, 5, 6, 7}}, {"labels", {1, 2, 3, 4, 5, 6, 7}}, {"position_ids", {0, 1, 2, 0, 1, 0, 1}}};
  ASSERT_TRUE(derive_inputs(inputs_of(7, 3), values));
  EXPECT_EQ(values["segments"], (Values{0, 3, 5, 7}));
  EXPECT_EQ(values["positions"], (Values{0, 1, 2, 0, 1, 0, 1}));
  EXPECT_EQ(values["targets"], (Values{2, 3, -100, 5, -100, 7, -100}));
}

TEST(Derived, LeftPaddingIsASegmentWithoutTargets) {
  HostValues values{{"tokens", {0, 0, 0, 4, 5, 6, 7, 8, 9, 10}},
                    {"labels", {9, 9, 9, 4, 5, 6, 7, 8, 9, 10}},
                    {"row_lengths", {5, 5}},
                    {"position_ids", {0, 0, 0, 0, 1, 0, 1, 2, 3, 4}},
                    {"attention_mask", {0, 0, 0, 1, 1, 1, 1, 1, 1, 1}}};
  ASSERT_TRUE(derive_inputs(inputs_of(10, 3), values));
  EXPECT_EQ(values["segments"], (Values{0, 3, 5, 10}));
  EXPECT_EQ(values["positions"], values["position_ids"]);
  EXPECT_EQ(values["targets"], (Values{-100, -100, -100, 5, -100, 7, 8, 9, 10, -100}));
}

TEST(Derived, MaskedTokensInsideAGivenSegmentHaveNoTarget) {
  HostValues values{{"tokens", {1, 2, 3, 4}}, {"labels", {1, 2, 3, 4}}, {"segments", {0, 4}}, {"attention_mask", {0, 1, 1, 0}}};
  ASSERT_TRUE(derive_inputs(inputs_of(4, 1), values));
  EXPECT_EQ(values["targets"], (Values{-100, 3, -100, -100}));
}

TEST(Derived, WrongDataIsRefused) {
  const Values four{1, 2, 3, 4};
  EXPECT_EQ(error_of(4, 1, {{"labels", four}}), "input 'segments' is computed from 'tokens', which was not given");
  EXPECT_EQ(error_of(4, 1, {{"tokens", four}}), "input 'targets' is computed from 'labels', which was not given");
  EXPECT_EQ(error_of(4, 1, {{"tokens", four}, {"labels", {1}}}), "input 'targets': labels has 1 elements, not 4");
  EXPECT_EQ(error_of(4, 1, {{"tokens", four}, {"labels", four}, {"row_lengths", {2, 2}}}),
            "input 'segments': 'segments' holds 1 segments, but the data has 2");
  EXPECT_EQ(error_of(4, 2, {{"tokens", four}, {"labels", four}, {"row_lengths", {2, 3}}}),
            "input 'segments': the row lengths do not add up to the 4 tokens");
  EXPECT_EQ(error_of(4, 2, {{"tokens", four}, {"labels", four}, {"row_lengths", {-1, 5}}}),
            "input 'segments': the row lengths do not add up to the 4 tokens");
  EXPECT_EQ(error_of(4, 2, {{"tokens", four}, {"labels", four}, {"row_lengths", {2}}}),
            "input 'segments': the row lengths do not add up to the 4 tokens");
  EXPECT_EQ(error_of(4, 2, {{"tokens", four}, {"labels", four}, {"position_ids", {0}}}),
            "input 'segments': positions has 1 elements, not 4");
  EXPECT_EQ(error_of(4, 2, {{"tokens", four}, {"labels", four}, {"attention_mask", {0}}}),
            "input 'segments': the attention mask has 1 elements, not 4");
  EXPECT_EQ(error_of(4, 2, {{"tokens", four}, {"labels", four}, {"segments", {0, 9}}}),
            "input 'positions': the segment table ends at 9, but there are 4 tokens");
  EXPECT_EQ(error_of(4, 2, {{"tokens", four}, {"labels", four}, {"segments", {0, 3, 2}}}),
            "input 'positions': the segment table descends at entry 2");
  EXPECT_EQ(error_of(4, 2, {{"tokens", four}, {"labels", four}, {"segments", {}}}), "input 'positions': a segment table starts with 0");
  EXPECT_EQ(error_of(3, 1, {{"tokens", four}, {"labels", four}}), "input 'positions': the segment table ends at 4, but there are 3 tokens");
}

TEST(Derived, CountValid) {
  ModelInput input;
  input.name = "count";
  input.type = {DType::kI32, {1}};
  input.derived_from = "count_valid";
  input.arguments = {{"values", "targets", 0}, {"ignore_index", "", -100}};
  HostValues values{{"targets", {3, -100, 0, -100, 7}}};
  ASSERT_TRUE(derive_inputs({&input, 1}, values));
  EXPECT_EQ(values["count"], (Values{3}));
}

TEST(Derived, ChecksFactsOfInputs) {
  const std::vector<ModelInput> inputs = inputs_of(4, 2);
  const auto message = [&](size_t k, const Values& values) {
    const Status status = check_input(inputs[k], values);
    return status ? std::string("accepted") : status.error().message;
  };
  EXPECT_EQ(message(0, {0, 255, 1, 2}), "accepted");
  EXPECT_EQ(message(0, {0, 1, 256, 2}), "input 'tokens' holds 256 at position 2; it must be in [0, 255]");
  EXPECT_EQ(message(0, {0, 1}), "input 'tokens' has 2 elements, but i32[4] needs 4");
  EXPECT_EQ(message(1, {0, 3, 2}), "input 'segments' descends at position 2: 2 after 3");
  EXPECT_EQ(message(3, {-100, 1, 2, -100}), "accepted");
  EXPECT_EQ(message(3, {-100, 1, 2, -1}), "input 'targets' holds -1 at position 3; it must be in [0, 255] or -100");
}

}  // namespace
}  // namespace glim
