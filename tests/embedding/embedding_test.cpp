// embedding_test SOURCE_FOLDER SCRATCH_FOLDER: a host program that uses all of <glim/glim.h>.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "check.h"

namespace embedding {
namespace {

void test_version() {
  EXPECT(std::string(glim::version()) ==
         std::to_string(GLIM_VERSION_MAJOR) + "." + std::to_string(GLIM_VERSION_MINOR) + "." + std::to_string(GLIM_VERSION_PATCH));
}

// Trains on data of its own; loss and token accuracy can be read each step, and say that something was learned.
void test_training(glim::Model& model) {
  std::vector<glim::StepResult> steps;
  for (int step = 0; step < 20; ++step) {
    steps.push_back(take(model.train_step(counting_batch(step), 1e-2)));
    const glim::StepResult& now = steps.back();
    EXPECT(now.num_valid == 4 * 15 && !now.skipped && now.gradient_norm > 0);
    EXPECT(now.token_accuracy == static_cast<double>(now.num_correct) / 60.0);
  }
  EXPECT(std::abs(steps[0].loss - std::log(23.0)) < 1.0);
  EXPECT(steps[19].loss < 0.7 * steps[0].loss);
  EXPECT(steps[19].token_accuracy > steps[0].token_accuracy + 0.2);
}

void test_lists(const glim::Model& model) {
  const auto inputs = model.inputs();
  EXPECT(inputs.size() == 4 && inputs[0].name == "tokens" && inputs[0].type == (glim::TensorType{glim::DType::kI32, {64}}));
  bool has_derived = false;
  for (const glim::InputInfo& input : inputs) has_derived = has_derived || (input.name == "targets" && input.derived_from == "targets");
  EXPECT(has_derived);
  const auto parameters = model.parameters();
  EXPECT(parameters.size() == 10 && parameters[0].name == "embed.table" && parameters[0].hf_name == "embed.weight" &&
         parameters[0].trained);
  EXPECT(parameters[0].type == (glim::TensorType{glim::DType::kF32, {23, 16}}));
  EXPECT(model.outputs().size() == 7);
}

void test_outputs(glim::Model& model) {
  EXPECT_HOLDS(model.output("loss").error().message, "forward() has not run");
  glim::Batch batch = counting_batch(3, 3, 10);
  batch.documents[1].labels.assign(10, -100);  // no loss on this document
  batch.integers["rows"] = {9};
  take(model.forward(batch));
  EXPECT(take(model.scalar("num_valid")) == 18);
  const glim::Tensor rows = take(model.output("row_loss"));
  EXPECT(rows.type == (glim::TensorType{glim::DType::kF32, {64}}) && rows.values<float>().size() == 64 && rows.values<double>().empty());
  double sum = 0;
  for (const float row : rows.values<float>()) sum += static_cast<double>(row);
  EXPECT(std::abs(sum / 18 - take(model.scalar("loss"))) < 1e-5);
  EXPECT(rows.at(10) == 0 && rows.at(9) == 0 && rows.at(8) > 0);  // the ignored document, and the last token of one
  const glim::Tensor logits = take(model.output("logits")), last = take(model.output("row_logits"));
  for (int64_t v = 0; v < 23; ++v) EXPECT(std::abs(logits.at(9 * 23 + v) - last.at(v)) < 1e-5);
  EXPECT_HOLDS(model.scalar("row_loss").error().message, "64 elements");

  const glim::Batch batches[] = {counting_batch(0), counting_batch(7, 2)};
  const glim::Metrics metrics = take(model.evaluate(batches));
  EXPECT(metrics.num_valid == 90 && metrics.loss > 0);
}

// Several micro-batches are one large batch, also when one of them has no valid label.
void test_accumulation(const std::string& folder) {
  glim::LoadOptions options = own_options();
  options.dtype = glim::DType::kF64;
  glim::Model one = own_model(folder, options), several = own_model(folder, options);
  for (int step = 0; step < 3; ++step) {
    glim::Batch whole = counting_batch(step);
    whole.documents[3].tokens.resize(9);
    std::vector<glim::Batch> parts(3);
    parts[0].documents = {whole.documents[0]};
    parts[1].documents = {{whole.documents[1].tokens, std::vector<int32_t>(16, -100)}};
    parts[2].documents = {whole.documents[1], whole.documents[2], whole.documents[3]};
    const double loss = take(one.evaluate(std::span(&whole, 1))).loss;
    const glim::StepResult a = take(one.train_step(whole, 1e-2)), b = take(several.train_step(parts, 1e-2));
    EXPECT(std::abs(a.loss - loss) < 1e-12 && std::abs(a.loss - b.loss) < 1e-12 && a.token_accuracy == b.token_accuracy &&
           std::abs(a.gradient_norm - b.gradient_norm) < 1e-11);
  }
}

bool same_bytes(const glim::Model& a, const glim::Model& b) {
  for (const glim::ParameterInfo& parameter : a.parameters()) {
    if (take(a.parameter(parameter.name)).bytes != take(b.parameter(parameter.hf_name)).bytes) return false;
  }
  return true;
}

void test_save(glim::Model& model, const std::string& folder, const std::string& scratch) {
  const glim::Batch batch = counting_batch(11);
  const double loss = take(model.evaluate(std::span(&batch, 1))).loss;
  const std::vector<int32_t> prompt{1, 3, 5, 7};
  const std::vector<int32_t> greedy = take(model.generate(prompt, 8));
  take(model.save(scratch + "/saved"));
  take(model.save(scratch + "/saved"));  // replaces the first
  glim::LoadOptions options = own_options();
  options.weights = scratch + "/saved";
  options.threads = 1;
  glim::Model again = own_model(folder, options);
  EXPECT(same_bytes(model, again));
  const double loss_again = take(again.evaluate(std::span(&batch, 1))).loss;
  EXPECT(std::memcmp(&loss, &loss_again, sizeof loss) == 0);
  EXPECT(take(again.generate(prompt, 8)) == greedy);

  // Weights from memory, by their checkpoint names.
  glim::Model by_name = own_model(folder, own_options());
  EXPECT(!same_bytes(by_name, again));
  for (const glim::ParameterInfo& parameter : again.parameters())
    take(by_name.set_parameter(parameter.hf_name, take(again.parameter(parameter.name))));
  EXPECT(same_bytes(by_name, again));
  EXPECT(take(by_name.generate(prompt, 8)) == greedy);
  take(by_name.initialise(5));
  EXPECT(!same_bytes(by_name, again) && take(by_name.generate(prompt, 8)) != greedy);
  take(by_name.load_weights(scratch + "/saved"));
  EXPECT(same_bytes(by_name, again) && take(by_name.generate(prompt, 8)) == greedy);

  // A model of a shipped architecture comes back from its folder alone.
  glim::LoadOptions small{
      .tokens = 32, .segments = 2, .settings = {"hidden=32", "num_layers=2", "num_heads=2", "num_kv_heads=1", "head_dim=16"}};
  glim::Model shipped = take(glim::Model::load("muse_glimmer_tiny", small));
  take(shipped.train_step(counting_batch(0, 2), 1e-2));
  take(shipped.save(scratch + "/hf"));
  EXPECT(same_bytes(shipped, take(glim::Model::load(scratch + "/hf", {.tokens = 32, .segments = 2}))));
  // Found beside the installed library, and nowhere else: run.sh has put it there.
  take(glim::Model::load("only_in_this_prefix", small));
  take(glim::Model::load_text("extends = \"muse_glimmer_tiny.toml\"\n[dims]\nnum_layers = 1\n", {.tokens = 32}));
}

void test_generation(glim::Model& model) {
  const std::vector<int32_t> prompt{4, 5, 6, 7, 8, 9};
  std::vector<int32_t> seen;
  const std::vector<int32_t> greedy = take(model.generate(prompt, 20, {}, [&](int32_t token) { seen.push_back(token); }));
  EXPECT(greedy.size() == 20 && seen == greedy);
  EXPECT(take(model.generate(prompt, 20)) == greedy);
  EXPECT(take(model.generate(prompt, 20, {.temperature = 5, .top_k = 1})) == greedy);
  const glim::Sampling warm{.temperature = 1.5, .top_p = 0.95, .seed = 3};
  glim::Sampling other = warm;
  other.seed = 4;
  const std::vector<int32_t> sampled = take(model.generate(prompt, 40, warm));
  EXPECT(take(model.generate(prompt, 40, warm)) == sampled && take(model.generate(prompt, 40, other)) != sampled);
  const std::vector<int32_t> stopped = take(model.generate(prompt, 20, {.stop = {greedy[2]}}));
  EXPECT(!stopped.empty() && stopped.size() <= 3 && stopped.back() == greedy[2]);
  EXPECT(take(model.generate(prompt, 0)).empty());
}

void test_threads(const std::string& folder) {
  glim::LoadOptions options = own_options();
  glim::Model two = own_model(folder, options);
  options.threads = 1;
  glim::Model one = own_model(folder, options);
  for (int step = 0; step < 3; ++step) {
    const glim::StepResult a = take(one.train_step(counting_batch(step), 1e-2)), b = take(two.train_step(counting_batch(step), 1e-2));
    EXPECT(std::memcmp(&a.loss, &b.loss, sizeof a.loss) == 0);
  }
  EXPECT(same_bytes(one, two));
}

void test_cancel(const std::string& folder) {
  // Between two micro-steps, from another thread.
  glim::Model* target = nullptr;
  glim::LoadOptions options = own_options();
  int64_t last_done = 0;
  options.progress = [&](const glim::Progress& progress) {
    if (progress.stage != "train_step") return;
    last_done = progress.done;
    if (target != nullptr && progress.done == 2) std::thread([&] { target->cancel(); }).join();
  };
  glim::Model model = own_model(folder, options), untouched = own_model(folder, own_options());
  const std::vector<glim::Batch> batches{counting_batch(0), counting_batch(1), counting_batch(2)};
  target = &model;
  const auto cancelled = model.train_step(batches, 1e-2);
  EXPECT(!cancelled && cancelled.error().code == glim::ErrorCode::kCancelled && last_done == 2);
  EXPECT(same_bytes(model, untouched));
  target = nullptr;
  const glim::StepResult after = take(model.train_step(batches, 1e-2)), straight = take(untouched.train_step(batches, 1e-2));
  EXPECT(after.loss == straight.loss && after.gradient_norm == straight.gradient_norm && same_bytes(model, untouched));

  // In the middle of a long generation.
  std::atomic<int> num_tokens{0};
  std::thread other([&] {
    while (num_tokens < 5) std::this_thread::yield();
    model.cancel();
  });
  const std::vector<int32_t> prompt{1};
  const auto generated = model.generate(prompt, 1000000, {.temperature = 1}, [&](int32_t) { ++num_tokens; });
  other.join();
  EXPECT(!generated && generated.error().code == glim::ErrorCode::kCancelled && num_tokens >= 5 && num_tokens < 1000000);
  take(model.generate(prompt, 3));

  // In the middle of a program: the first of two kernels asks for it, and the second one does not run.
  glim::LoadOptions counted_options = own_options();
  const auto kernel = counted_options.ops[0].kernel;
  int num_calls = 0;
  counted_options.ops[0].kernel = [&](const glim::KernelCall& call) {
    kernel(call);
    if (++num_calls == 1) std::thread([&] { target->cancel(); }).join();
  };
  glim::Model counted = own_model(folder, counted_options);
  target = &counted;
  EXPECT(counted.train_step(counting_batch(0), 1e-2).error().code == glim::ErrorCode::kCancelled && num_calls == 1);
  take(counted.train_step(counting_batch(0), 1e-2));

  // A request made while nothing runs ends the next call, and only that.
  model.cancel();
  EXPECT(model.forward(counting_batch(0)).error().code == glim::ErrorCode::kCancelled);
  EXPECT_HOLDS(model.output("loss").error().message, "forward() has not run");
  take(model.forward(counting_batch(0)));
}

void test_skipped_step(const std::string& folder) {
  std::string warned;
  glim::LoadOptions options = own_options();
  options.log = [&](glim::LogLevel level, std::string_view line) {
    if (level == glim::LogLevel::kWarning) warned = line;
  };
  glim::Model model = own_model(folder, options);
  glim::Tensor head = take(model.parameter("lm_head.weight"));
  std::vector<double> wide(23 * 16, 0.1);
  wide[7] = INFINITY;
  take(model.set_parameter("head.lm_head", glim::Tensor::of<double>({23, 16}, wide)));
  const glim::Tensor before = take(model.parameter("embed.table"));
  EXPECT(take(model.train_step(counting_batch(0), 1e-2)).skipped);
  EXPECT_HOLDS(warned, "not finite");
  EXPECT(take(model.parameter("embed.table")).bytes == before.bytes);
  take(model.set_parameter("head.lm_head", head));
  EXPECT(!take(model.train_step(counting_batch(0), 1e-2)).skipped);
}

void test_frozen(const std::string& folder) {
  glim::LoadOptions options = own_options();
  options.trains = [](std::string_view name) { return name.starts_with("decoder."); };
  options.rematerialise = glim::Rematerialise::kFull;
  glim::Model model = own_model(folder, options), fresh = own_model(folder, own_options());
  take(model.train_step(counting_batch(0), 1e-2));
  EXPECT(take(model.parameter("embed.table")).bytes == take(fresh.parameter("embed.table")).bytes);
  EXPECT(take(model.parameter("decoder.0.up")).bytes != take(fresh.parameter("decoder.0.up")).bytes);
  EXPECT(!model.parameters()[0].trained && model.parameters()[1].trained);
  EXPECT_HOLDS(model.gradient("embed.table").error().message, "is not trained");
}

}  // namespace
}  // namespace embedding

int main(int argc, char** argv) {
  using namespace embedding;
  if (argc != 3) return 2;
  const std::string folder = argv[1], scratch = argv[2];
  std::vector<std::string> log;
  std::vector<std::string> stages;
  glim::LoadOptions options = own_options();
  options.outputs = {"row_loss", "logits", "row_logits"};
  options.log = [&](glim::LogLevel, std::string_view line) { log.emplace_back(line); };
  options.progress = [&](const glim::Progress& progress) { stages.emplace_back(progress.stage); };
  glim::Model model = own_model(folder, options);
  EXPECT(log.size() == 1 && stages == std::vector<std::string>({"load", "load", "load"}));
  EXPECT_HOLDS(log[0], "model.toml");

  test_version();
  test_lists(model);
  test_outputs(model);
  test_training(model);
  test_generation(model);
  test_save(model, folder, scratch);
  test_accumulation(folder);
  test_threads(folder);
  test_cancel(folder);
  test_skipped_step(folder);
  test_frozen(folder);
  test_ops(folder);
  test_errors(folder);
  return 0;
}
