// Timelines of programs: valid trace events that say what ran, and the same bits as without; what goes wrong is an error.
#include "runtime/step_trace.h"

#include <nlohmann/json.hpp>

#include "tests/runtime/small_model.h"

namespace glim {
namespace {

constexpr int64_t kTokens = 16;
SmallModel make_model() {
  SmallModel small(small_spec(), {.tokens = kTokens, .programs = {ProgramKind::kFirst, ProgramKind::kUpdate}, .real = DType::kF32});
  EXPECT_TRUE(small.model().reset_optimizer());
  EXPECT_TRUE(small.model().set_scalar(kLearningRateName, 1e-2));
  const std::vector<int32_t> tokens = random_tokens(kTokens, 37, 3);
  EXPECT_TRUE(small.model().set_inputs({{"tokens", tokens}, {"labels", tokens}, {"row_lengths", {kTokens}}}));
  return small;
}

TEST(StepTrace, SaysWhatRanWhenAndChangesNothing) {
  SmallModel traced = make_model(), plain = make_model();
  StepTrace trace("a \xff title");  // no UTF-8, as a name in a model file may be
  for (const ProgramKind kind : {ProgramKind::kFirst, ProgramKind::kUpdate}) {
    ASSERT_TRUE(trace.run(traced.model(), kind));
    ASSERT_TRUE(plain.model().run(kind));
  }
  for (const auto& [name, slot] : plain.model().compiled().layout.slots()) {
    if (slot.arena != Arena::kParameters && slot.arena != Arena::kOptimizer) continue;
    EXPECT_EQ(traced.model().state(name)->bytes, plain.model().state(name)->bytes) << name;
  }

  const nlohmann::json root = nlohmann::json::parse(trace.json());
  std::map<std::string, std::string> tracks;
  std::map<std::string, int> steps;
  std::map<int, double> end;  // of the last event of a track: they come in order and do not overlap
  double flops = 0;
  for (const nlohmann::json& event : root.at("traceEvents")) {
    ASSERT_TRUE(event.at("pid").is_number() && event.at("tid").is_number() && event.at("name").is_string());
    if (event.at("ph") == "M") {
      tracks[event.at("name")] += event.at("args").at("name").get<std::string>() + ";";
      continue;
    }
    ASSERT_EQ(event.at("ph"), "X");
    const int track = event.at("tid");
    const double start = event.at("ts"), duration = event.at("dur");
    EXPECT_GE(start, end[track] - 1e-3) << event;
    EXPECT_GE(duration, 0);
    end[track] = start + duration;
    if (track == 0) continue;
    ++steps[event.at("cat")];
    EXPECT_GT(event.at("args").at("bytes").get<double>(), 0) << event;
    flops += event.at("args").at("flops").get<double>();
  }
  EXPECT_EQ(tracks["thread_name"], "programs;compute;");
  EXPECT_NE(tracks["process_name"].find("title"), std::string::npos);
  double expected = 0;
  for (const ProgramKind kind : {ProgramKind::kFirst, ProgramKind::kUpdate}) {
    const Executable& executable = *plain.model().executable(kind);
    EXPECT_EQ(steps[std::string(to_string(kind))], static_cast<int>(executable.steps().size()));
    for (const BoundStep& step : executable.steps()) {
      if (step.kind == BoundStep::Kind::kKernel) expected += executable.program().graph.cost(step.node).flops;
    }
  }
  EXPECT_DOUBLE_EQ(flops, expected);
  EXPECT_GT(end[0], end[1] - 1e3) << "the programs' track ends with the steps";
  EXPECT_NE(trace.json().find("linear at decoder.3"), std::string::npos);
}

TEST(StepTrace, AFailedProgramIsItsError) {
  SmallModel small = make_model();
  StepTrace trace("trace");
  std::atomic<bool> stop{true};
  small.model().set_cancellation(&stop);
  const Status status = trace.run(small.model(), ProgramKind::kFirst);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(nlohmann::json::parse(trace.json()).at("traceEvents").size(), 1U);  // the title
  stop = false;
  EXPECT_TRUE(small.model().run(ProgramKind::kFirst));  // the profile is off again
}

TEST(Model, AScalarThatCannotBeReadIsAnError) {
  SmallModel small = make_model();
  const Result<double> wrong = small.model().scalar(ProgramKind::kFirst, "los");
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message.find("did you mean 'loss'"), std::string::npos) << wrong.error().message;
}

TEST(Executor, TimesRunsThatDoWhatRunDoes) {
  SmallModel timed = make_model(), plain = make_model();
  const Result<double> seconds = timed.model().executor().time(*timed.model().executable(ProgramKind::kFirst), 3);
  ASSERT_TRUE(seconds) << seconds.error().to_string();
  EXPECT_GT(*seconds, 0);
  ASSERT_TRUE(plain.model().run(ProgramKind::kFirst));
  EXPECT_EQ(*timed.model().scalar(ProgramKind::kFirst, "loss"), *plain.model().scalar(ProgramKind::kFirst, "loss"));
}

}  // namespace
}  // namespace glim
