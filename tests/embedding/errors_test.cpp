// Errors are values that say what is wrong and name what was probably meant.
#include <stdexcept>

#include "check.h"

namespace embedding {
namespace {

template <class T>
std::string message(const glim::Result<T>& result) {
  return result ? "no error" : result.error().to_string();
}

}  // namespace

void test_errors(const std::string& folder) {
  EXPECT_HOLDS(message(glim::Model::load("muse_glimer_tiny")), "did you mean 'muse_glimmer_tiny'?");
  EXPECT_HOLDS(message(glim::Model::load("muse_glimmer_tiny", {.settings = {"num_layer=2"}})), "did you mean 'num_layers'?");
  EXPECT_HOLDS(message(glim::Model::load("muse_glimmer_tiny", {.runtime_dims = {{"RR", 1}}})), "did you mean 'R'?");
  EXPECT_HOLDS(message(glim::Model::load("muse_glimmer_tiny", {.outputs = {"row_los"}})), "did you mean 'row_loss'?");
  EXPECT_HOLDS(message(glim::Model::load("muse_glimmer_tiny", {.backend = "cpuu"})), "did you mean 'cpu'?");
  EXPECT_HOLDS(message(glim::Model::load("muse_glimmer_tiny", {.tokens = 0})), "tokens and segments must be at least 1");
  EXPECT_HOLDS(message(glim::Model::load("muse_glimmer_tiny", {.dtype = glim::DType::kI32})), "dtype is f32, f64 or bf16, not i32");
  EXPECT_HOLDS(message(glim::Model::load("muse_glimmer_tiny", {.weights = "/nowhere"})), "/nowhere");

  const auto text = glim::Model::load_text(
      "extends = \"muse_glimmer_tiny.toml\"\n[blocks.embed]\nops = [{ out = \"x\", op = \"embeding\", ids = \"tokens\", weight = \"table\" "
      "}]\n");
  EXPECT(message(text).starts_with("<text>:3:"));
  EXPECT_HOLDS(message(text), "did you mean 'embedding'?");
  const auto wrong = glim::Model::load_text("flow = [\n");
  EXPECT(wrong.error().code == glim::ErrorCode::kInvalidArgument && wrong.error().file == "<text>" && wrong.error().line >= 1);

  glim::Model model = own_model(folder, own_options());
  EXPECT_HOLDS(message(model.output("loss")), "forward() has not run");
  glim::Batch batch = counting_batch(0);
  take(model.forward(batch));
  EXPECT_HOLDS(message(model.output("los")), "did you mean 'loss'?");
  EXPECT_HOLDS(message(model.parameter("layers.0.upp.weight")), "did you mean 'layers.0.up.weight'?");
  EXPECT_HOLDS(message(model.gradient("embed.table")), "there are no gradients");
  batch.integers["token"] = {1};
  EXPECT_HOLDS(message(model.forward(batch)), "did you mean 'tokens'?");
  batch.integers.clear();
  batch.reals["x"] = {1};
  EXPECT_HOLDS(message(model.forward(batch)), "no real input 'x'");
  batch.reals.clear();
  batch.documents[1].tokens[3] = 99;
  EXPECT_HOLDS(message(model.train_step(batch, 1e-2)), "input 'tokens' holds 99 at position 19; it must be in [0, 22]");
  batch.documents[1].labels = {1, 2};
  EXPECT_HOLDS(message(model.train_step(batch, 1e-2)), "document 1 has 16 tokens and 2 labels");
  EXPECT_HOLDS(message(model.train_step(counting_batch(0, 5), 1e-2)),
               "80 tokens in 5 documents, but the model was loaded for 64 tokens in 4");
  EXPECT_HOLDS(message(model.train_step(std::span<const glim::Batch>(), 1e-2)), "at least one batch");
  EXPECT_HOLDS(message(model.train_step(counting_batch(0), -1)), "learning rate");
  EXPECT_HOLDS(message(model.generate({}, 3)), "the prompt is empty");
  EXPECT_HOLDS(message(model.generate(std::vector<int32_t>{40}, 3)), "holds 40");
  EXPECT_HOLDS(message(model.generate(std::vector<int32_t>{4}, 3, {.top_p = 2})), "top_p 2");
  EXPECT_HOLDS(message(model.set_parameter("embed.table", glim::Tensor::of<float>({2}, std::vector<float>{1, 2}))), "f32[23,16]");
  EXPECT(model.save("/proc/nowhere").error().code == glim::ErrorCode::kIo);
  EXPECT_HOLDS(message(model.generate(std::vector<int32_t>{4}, 3, {}, [](int32_t) { throw std::runtime_error("from the host"); })),
               "from the host");

  glim::LoadOptions forward_only = own_options();
  forward_only.trainable = false;
  glim::Model fixed = own_model(folder, forward_only);
  take(fixed.forward(counting_batch(0)));
  EXPECT_HOLDS(message(fixed.train_step(counting_batch(0), 1e-2)), "trainable = false");
}

}  // namespace embedding
