// Runs: resuming bit by bit, what is refused, stopping, logs, and that a long run does not grow.
#include <malloc.h>

#include <algorithm>

#include "runtime/run/chart.h"
#include "tests/runtime/run_fixture.h"

#if defined(__SANITIZE_ADDRESS__)
extern "C" size_t __sanitizer_get_current_allocated_bytes();
#endif

namespace glim {
namespace {

namespace fs = std::filesystem;

void expect_same_bits(const StepMetrics& a, const StepMetrics& b) {
  EXPECT_EQ(a.step, b.step);
  for (const auto& [x, y] : {std::pair(a.loss, b.loss),
                             {a.gradient_norm, b.gradient_norm},
                             {a.learning_rate, b.learning_rate},
                             {a.token_accuracy, b.token_accuracy}})
    EXPECT_EQ(std::memcmp(&x, &y, sizeof x), 0) << "step " << a.step << ": " << x << " and " << y;
  EXPECT_EQ(a.num_tokens, b.num_tokens) << a.step;
  EXPECT_EQ(a.num_valid, b.num_valid) << a.step;
}

// Losses depend on every token of every micro-step and on every parameter: equal bits mean equal order, too.
TEST(Run, ResumedFromEveryStepItIsTheStraightRun) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Runs runs(dtype);
    const std::unique_ptr<Outcome> straight = go(runs.config);
    ASSERT_FALSE(straight->error) << straight->error->to_string();
    ASSERT_EQ(straight->recorder.steps.size(), 20U);
    EXPECT_NE(straight->recorder.steps[0].loss, straight->recorder.steps[19].loss);
    for (int64_t step = 1; step < 20; step += dtype == DType::kF32 ? 1 : 6) {
      TrainConfig config = runs.config;
      config.output = runs.folder / ("fork" + std::to_string(step));
      config.checkpoint.every = 0;
      const std::unique_ptr<Outcome> resumed = go(config, runs.checkpoint(step));
      ASSERT_FALSE(resumed->error) << resumed->error->to_string();
      ASSERT_EQ(resumed->recorder.steps.size(), static_cast<size_t>(20 - step));
      for (size_t k = 0; k < resumed->recorder.steps.size(); ++k)
        expect_same_bits(resumed->recorder.steps[k], straight->recorder.steps[static_cast<size_t>(step) + k]);
      EXPECT_EQ(resumed->state, straight->state) << step;
      fs::remove_all(config.output);
    }
  }
}

TEST(Run, StoppedAndResumedItIsTheStraightRun) {
  Runs runs;
  runs.config.checkpoint.every = 0;
  TrainConfig straight_config = runs.config;
  straight_config.output = "";
  const std::unique_ptr<Outcome> straight = go(straight_config), stopped = go(runs.config, "", 7);
  ASSERT_FALSE(straight->error || stopped->error);
  EXPECT_EQ(*stopped->end, RunEnd::kStopped);
  EXPECT_EQ(stopped->recorder.steps.size(), 7U);
  EXPECT_FALSE(fs::exists(runs.config.output + "/model"));
  EXPECT_NE(read_file(runs.config.output + "/run.html").find(">stopped<"), std::string::npos);

  const std::unique_ptr<Outcome> refused = go(runs.config);
  ASSERT_TRUE(refused->error);
  EXPECT_EQ(refused->error->code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused->error->message.find("holds a run that has reached step 7: go on with --resume auto"), std::string::npos)
      << refused->error->message;

  // A crash may have written lines of steps after the checkpoint, and half a line.
  const std::string log = runs.config.output + "/metrics.jsonl";
  write_file(log, read_file(log) + "{\"step\":8,\"loss\":77}\n{\"step\":9,\"lo");
  const std::unique_ptr<Outcome> resumed = go(runs.config, "auto");
  ASSERT_FALSE(resumed->error) << resumed->error->to_string();
  EXPECT_EQ(resumed->recorder.steps.size(), 13U);
  EXPECT_EQ(resumed->state, straight->state);
  EXPECT_NE(resumed->recorder.all_events().find("7 resumed: resumed after step 7"), std::string::npos) << resumed->recorder.all_events();

  std::vector<int64_t> steps;
  std::istringstream lines(read_file(log));
  for (std::string line; std::getline(lines, line);) {
    EXPECT_EQ(line.find("\"loss\":77}"), std::string::npos);
    if (line.find("\"loss\"") != std::string::npos) steps.push_back(std::stoll(line.substr(line.find(':') + 1)));
  }
  ASSERT_EQ(steps.size(), 20U);
  for (size_t k = 0; k < steps.size(); ++k) EXPECT_EQ(steps[k], static_cast<int64_t>(k + 1));
  EXPECT_TRUE(fs::exists(runs.config.output + "/model/model.safetensors"));

  const std::unique_ptr<Outcome> again = go(runs.config, "auto");  // nothing is left to do
  ASSERT_FALSE(again->error) << again->error->to_string();
  EXPECT_TRUE(again->recorder.steps.empty());
  EXPECT_EQ(again->state, straight->state);
}

TEST(Run, AnotherRunIsRefusedWithTheDifferenceNamed) {
  Runs runs;
  runs.config.steps = 2;
  ASSERT_FALSE(go(runs.config)->error);
  const auto refusal = [&](auto change) {
    TrainConfig config = runs.config;
    config.steps = 4;
    change(config);
    const std::unique_ptr<Outcome> outcome = go(config, "auto");
    if (!outcome->error) return std::string("accepted");
    EXPECT_EQ(outcome->error->code, ErrorCode::kInvalidArgument);
    return outcome->error->message;
  };
  const auto expect_names = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect_names(refusal([](TrainConfig& c) { c.tokens = 40; }), "train.tokens was 48 and is 40 now");
  expect_names(refusal([](TrainConfig& c) { c.seed = 2; }), "train.seed was 1 and is 2 now");
  expect_names(refusal([](TrainConfig& c) { c.micro_steps = 2; }), "train.micro_steps was 3 and is 2 now");
  expect_names(refusal([](TrainConfig& c) { c.dtype = DType::kF64; }), "train.dtype was f32 and is f64 now");
  expect_names(refusal([](TrainConfig& c) { c.set.emplace_back("num_layers=3"); }), "model.num_layers was 2 and is 3 now");
  expect_names(refusal([](TrainConfig& c) { c.set.emplace_back("sliding_window=4"); }), "model.sliding_window was 8 and is 4 now");
  expect_names(refusal([](TrainConfig& c) { c.set.emplace_back("rope_theta=7777.0"); }), "the model's graph was ");
  expect_names(refusal([](TrainConfig& c) { c.data.validation_fraction = 0.4; }), "data.validation_fraction was 0.1 and is 0.4 now");
  expect_names(refusal([](TrainConfig& c) { c.data.overlong = Overlong::kDrop; }), "data.overlong was split and is drop now");
  write_file(runs.folder / "text3.txt", "changed");
  expect_names(refusal([](TrainConfig&) {}), "the data was ");
}

TEST(Run, TheScheduleMayChangeAndIsSaid) {
  Runs runs;
  runs.config.steps = 2;
  ASSERT_FALSE(go(runs.config)->error);
  runs.config.steps = 4;
  runs.config.learning_rate = 5e-3;
  const std::unique_ptr<Outcome> longer = go(runs.config, "auto");
  ASSERT_FALSE(longer->error) << longer->error->to_string();
  EXPECT_EQ(longer->recorder.steps.size(), 2U);
  const std::string events = longer->recorder.all_events();
  EXPECT_NE(events.find("train.steps was 2 and is 4 now"), std::string::npos) << events;
  EXPECT_NE(events.find("train.learning_rate was 0.01 and is 0.005 now"), std::string::npos) << events;

  TrainConfig back = runs.config;  // from the middle, where later checkpoints lie
  const std::unique_ptr<Outcome> refused = go(back, runs.checkpoint(2));
  ASSERT_TRUE(refused->error);
  EXPECT_NE(refused->error->message.find("also holds the checkpoint of step 4, after step 2"), std::string::npos)
      << refused->error->message;
}

TEST(Run, ADamagedCheckpointIsPassedOverAndSaid) {
  Runs runs;
  runs.config.steps = 6;
  const std::unique_ptr<Outcome> straight = go(runs.config);
  ASSERT_FALSE(straight->error);
  std::string bytes = read_file(runs.checkpoint(6) + "/optimizer.safetensors");
  bytes[bytes.size() - 5] ^= 4;
  write_file(runs.checkpoint(6) + "/optimizer.safetensors", bytes);
  fs::resize_file(runs.checkpoint(5) + "/model.safetensors", 100);
  const std::unique_ptr<Outcome> resumed = go(runs.config, "auto");
  ASSERT_FALSE(resumed->error) << resumed->error->to_string();
  EXPECT_EQ(resumed->recorder.steps.size(), 2U);
  EXPECT_EQ(resumed->state, straight->state);
  const std::string events = resumed->recorder.all_events();
  EXPECT_NE(events.find("step-00000006"), std::string::npos) << events;
  EXPECT_NE(events.find("optimizer.safetensors"), std::string::npos) << events;
  EXPECT_NE(events.find("resumed after step 4"), std::string::npos) << events;
  for (int64_t step = 1; step <= 6; ++step) fs::remove(runs.checkpoint(step) + "/manifest.json");
  const std::unique_ptr<Outcome> none = go(runs.config, "auto");
  ASSERT_TRUE(none->error);
  EXPECT_EQ(none->error->code, ErrorCode::kInvalidFile);
  EXPECT_NE(none->error->message.find("none of the 6 checkpoints"), std::string::npos) << none->error->message;
}

// The culprit is named, whether it is a parameter, the forward pass, the backward pass, or only one micro-step.
TEST(Run, TheFirstNodeThatIsNotFiniteIsNamed) {
  Runs runs(DType::kF64);
  const auto message = [&](const std::vector<std::string>& parameters, double factor) {
    TrainConfig config = runs.config;
    config.output = "";
    Result<Trainer> trainer = Trainer::create(config);
    EXPECT_TRUE(trainer);
    for (const std::string& parameter : parameters) {
      const Result<HostTensor> tensor = trainer->model().state(parameter);
      EXPECT_TRUE(tensor) << parameter;
      std::vector<double> values = as_doubles(*tensor);
      for (double& value : values) value *= factor;
      EXPECT_TRUE(trainer->model().set_state(parameter, std::as_bytes(std::span(values))));
    }
    for (int k = 1; k < Trainer::kMaxSkipped; ++k) {
      const Result<StepMetrics> metrics = trainer->step();
      EXPECT_TRUE(metrics && metrics->skipped);
    }
    const Result<StepMetrics> last = trainer->step();
    EXPECT_FALSE(last);
    if (last) return std::string();
    EXPECT_EQ(last.error().code, ErrorCode::kNumeric);
    return last.error().message;
  };
  const std::string parameter = message({"decoder.1.up_proj"}, INFINITY);
  EXPECT_NE(parameter.find("first not finite: parameter decoder.1.up_proj: "), std::string::npos) << parameter;
  const std::string node = message({"decoder.1.gate_proj", "decoder.1.up_proj"}, 1e200);  // the product of the two overflows
  EXPECT_NE(node.find("first not finite: swiglu at decoder.1"), std::string::npos) << node;
  EXPECT_NE(node.find("in micro-step 0"), std::string::npos) << node;
}

size_t allocated_bytes() {
#if defined(__SANITIZE_ADDRESS__)
  return __sanitizer_get_current_allocated_bytes();
#else
  return mallinfo2().uordblks;
#endif
}

TEST(Run, TenThousandStepsDoNotGrow) {
  Runs runs;
  TrainConfig& config = runs.config;
  config.set = {"hidden=4", "feed_forward=4", "num_heads=1", "num_kv_heads=1", "head_dim=4", "num_layers=1"};
  config.tokens = 16;
  config.micro_steps = 1;
  config.steps = 10000;
  config.checkpoint = {2500, 2, 0};
  struct Watcher final : RunObserver {
    std::map<int64_t, size_t> bytes;
    void on_step(const StepMetrics& metrics, const Progress&) override {
      if (metrics.step % 1000 == 0) bytes[metrics.step] = allocated_bytes();
    }
    void on_validation(int64_t, const Evaluation&) override {}
    void on_event(int64_t, std::string_view, const std::string&) override {}
  } watcher;
  Result<TrainingRun> run = TrainingRun::open(config, "", watcher);
  ASSERT_TRUE(run) << run.error().to_string();
  const std::atomic<bool> stop{false};
  const Result<RunEnd> end = run->run(stop);
  ASSERT_TRUE(end) << end.error().to_string();
  ASSERT_EQ(watcher.bytes.size(), 10U);
  // The curves of the report are full after 2,048 steps; the first checkpoint allocates its buffer.
  for (int64_t step = 4000; step <= 10000; step += 1000)
    EXPECT_LT(watcher.bytes[step], watcher.bytes[3000] + 65536) << "after " << step << " steps";
  EXPECT_EQ(std::distance(fs::directory_iterator(config.output + "/checkpoints"), {}), 3);  // two and the lock
}

TEST(Run, TheReportIsOnePageThatHoldsEverything) {
  Runs runs;
  runs.config.validate_every = 5;
  ASSERT_FALSE(go(runs.config)->error);
  const std::string html = read_file(runs.config.output + "/run.html");
  for (const char* part : {"<!doctype html>", "# &lt;made&gt; by a test &amp; &quot;quoted&quot;", ">finished<", "validation",
                           "linear_cross_entropy_grad", "attention_vjp", "activations", "step 20 of 20", "weights written to"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  for (const char* outside : {"http://", "https://www", "src=", "@import", "url("}) {
    const size_t found = html.find(outside);
    EXPECT_TRUE(found == std::string::npos || html.substr(found).starts_with("http://www.w3.org/2000/svg")) << outside;
  }
  const std::string log = read_file(runs.config.output + "/metrics.jsonl");
  EXPECT_NE(log.find("\"validation_token_accuracy\""), std::string::npos);
}

TEST(Curve, StaysSmallAndKeepsTheMean) {
  Curve curve;
  double sum = 0;
  for (int k = 0; k < 100000; ++k) {
    curve.add(k, k % 10);
    sum += k % 10;
  }
  curve.add(100000, NAN);
  const std::vector<CurvePoint> points = curve.points();
  EXPECT_LE(points.size(), Curve::kMaxPoints + 1);
  EXPECT_GE(points.size(), Curve::kMaxPoints / 2);
  EXPECT_TRUE(std::is_sorted(points.begin(), points.end(), [](const CurvePoint& a, const CurvePoint& b) { return a.step < b.step; }));
  for (const CurvePoint& point : points) EXPECT_NEAR(point.value, 4.5, 1.5);
  EXPECT_NEAR(points.front().step, 31.5, 32);
  EXPECT_NEAR(points.back().step, 99999, 64);
}

TEST(Chart, EmptySinglePointAndConstantSeriesAreDrawn) {
  for (const std::vector<CurvePoint>& points :
       {std::vector<CurvePoint>{}, std::vector<CurvePoint>{{3, 7}}, std::vector<CurvePoint>{{1, 2}, {2, 2}, {3, 2}},
        std::vector<CurvePoint>{{1, 0}, {2, 0}}, std::vector<CurvePoint>{{1, 0.7}, {2, (0.7 + 0.7 + 0.7) / 3}}}) {
    const std::string svg = to_svg({"A <b>", "unit", {{"x", points}}, false});
    EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
    EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
    EXPECT_NE(svg.find("A &lt;b&gt;"), std::string::npos);
  }
  EXPECT_EQ(short_number(12345), "12.3k");
  EXPECT_EQ(short_number(999600), "1M");
  EXPECT_EQ(short_number(0.00021), "2.1e-04");
}

}  // namespace
}  // namespace glim
