// What goes wrong beside the training: it goes on, says so, and ends with the bits of a run that nothing disturbed.
#include <cerrno>
#include <nlohmann/json.hpp>

#include "tests/runtime/run_fixture.h"
#include "tests/runtime/system_calls.h"

namespace glim {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The records of metrics.jsonl without events and without what depends on the clock.
std::vector<Json> records(const std::string& folder) {
  std::vector<Json> out;
  std::istringstream lines(read_file(folder + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    Json record = Json::parse(line, nullptr, false);
    EXPECT_TRUE(record.is_object()) << line;
    if (!record.is_object() || record.contains("event")) continue;
    for (const char* key : {"tokens_per_second", "gflop_per_second", "resident_bytes", "seconds"}) record.erase(key);
    out.push_back(std::move(record));
  }
  return out;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// The flag is set when the validation of step 10 is due: it is given up, and done by the run that goes on.
TEST(Run, AStopDuringAValidationRecordsNothingOfIt) {
  for (const int64_t steps : {15, 10}) {  // a validation on the way, and the one at the end
    Runs runs;
    runs.config.steps = steps;
    runs.config.validate_every = 5;
    runs.config.checkpoint.every = 0;
    TrainConfig straight_config = runs.config;
    straight_config.output = runs.folder / "straight";
    const std::unique_ptr<Outcome> straight = go(straight_config), stopped = go(runs.config, "", 10);
    ASSERT_FALSE(straight->error || stopped->error);
    EXPECT_EQ(*stopped->end, RunEnd::kStopped);
    EXPECT_EQ(stopped->recorder.validated(), (std::vector<int64_t>{5}));
    EXPECT_EQ(count(read_file(runs.config.output + "/metrics.jsonl"), "validation_loss"), 1);
    EXPECT_FALSE(fs::exists(runs.config.output + "/model"));
    const std::unique_ptr<Outcome> resumed = go(runs.config, "auto");
    ASSERT_FALSE(resumed->error) << resumed->error->to_string();
    EXPECT_EQ(*resumed->end, RunEnd::kFinished);
    EXPECT_EQ(resumed->state, straight->state);
    EXPECT_EQ(records(runs.config.output), records(straight_config.output));
    const std::unique_ptr<Outcome> again = go(runs.config, "auto");
    ASSERT_FALSE(again->error) << again->error->to_string();
    EXPECT_TRUE(again->recorder.validations.empty()) << "the log has it already";
    EXPECT_EQ(records(runs.config.output), records(straight_config.output));
  }
}

TEST(Run, AValidationStopsWithinOneBatch) {
  Runs runs;
  Result<Trainer> trainer = Trainer::create(runs.config);
  ASSERT_TRUE(trainer) << trainer.error().to_string();
  std::atomic<bool> stop{false};
  int64_t num_batches = 0;
  trainer->model().set_cancellation(&stop);
  const Result<Evaluation> evaluation = evaluate(trainer->model(), 1000, [&](int64_t) {
    stop = ++num_batches == 4;
    return trainer->data().validation_batch(0);
  });
  ASSERT_FALSE(evaluation);
  EXPECT_EQ(evaluation.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(num_batches, 4);
}

TEST(MetricsLog, HalfALineIsTakenBack) {
  const ScratchFolder scratch;
  const std::string path = scratch / "metrics.jsonl";
  Result<MetricsLog> log = MetricsLog::open(path, 0, [](const MetricsLine&) {});
  ASSERT_TRUE(log) << log.error().to_string();
  ASSERT_TRUE(log->append("{\"step\":1}"));
  for (const bool can_cut : {true, false}) {
    {
      const FullDisk disk(5);
      const FailingCall fault(can_cut ? -1 : 0, EIO, "ftruncate");
      const Status second = log->append("{\"step\":2}");
      ASSERT_FALSE(second);
      EXPECT_NE(second.error().message.find("No space left on device"), std::string::npos) << second.error().message;
      EXPECT_EQ(read_file(path), can_cut ? "{\"step\":1}\n" : "{\"step\":1}\n{\"step\":3}\n{\"ste");
      EXPECT_FALSE(log->append("{\"step\":2}"));
      EXPECT_EQ(read_file(path), can_cut ? "{\"step\":1}\n" : "{\"step\":1}\n{\"step\":3}\n");
    }
    ASSERT_TRUE(log->append("{\"step\":3}"));
  }
  EXPECT_EQ(read_file(path), "{\"step\":1}\n{\"step\":3}\n{\"step\":3}\n");
}

TEST(Run, ALogThatCannotBeWrittenIsGoneOnWith) {
  Runs runs;
  runs.config.checkpoint.every = 0;
  runs.config.steps = 12;
  std::optional<FullDisk> disk;
  const std::unique_ptr<Outcome> outcome = go(runs.config, "", -1, [&](int64_t step) {
    if (step == 3 || step == 9) disk.emplace(20);
    if (step == 6 || step == 10) disk.reset();
  });
  ASSERT_FALSE(outcome->error) << outcome->error->to_string();
  std::vector<int64_t> steps;
  for (const Json& record : records(runs.config.output)) {
    if (record.contains("loss")) steps.push_back(record["step"]);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 6, 7, 8, 10, 11, 12}));
  const std::string events = outcome->recorder.all_events(), log = read_file(runs.config.output + "/metrics.jsonl");
  EXPECT_EQ(count(events, "metrics.jsonl: records are lost from here on: "), 2) << events;
  EXPECT_NE(events.find("cannot write: No space left on device"), std::string::npos) << events;
  for (const std::string& text : {events, log}) {
    EXPECT_EQ(count(text, "metrics.jsonl is written again; records lost: 3"), 1) << text;
    EXPECT_EQ(count(text, "metrics.jsonl is written again; records lost: 1"), 1) << text;
  }
  EXPECT_EQ(outcome->recorder.steps.size(), 12U);
}

// One save fails, and a later one is good; the last one fails once; the last one fails as often as it is tried.
TEST(Run, ASaveThatFailsEndsNothingUnlessItIsTheLast) {
  Runs runs;
  runs.config.steps = 8;
  runs.config.checkpoint.every = 2;
  TrainConfig straight_config = runs.config;
  straight_config.output = "";
  const std::unique_ptr<Outcome> straight = go(straight_config);
  ASSERT_FALSE(straight->error);
  const auto go_with_fault = [&](int64_t at, int error, const char* call) {
    std::optional<FailingCall> fault;
    return go(runs.config, "", -1, [&](int64_t step) {
      if (step == at) fault.emplace(0, error, call, "/." + checkpoint_name(at));
    });
  };
  const std::unique_ptr<Outcome> fourth = go_with_fault(4, ENOSPC, "mkdir");
  ASSERT_FALSE(fourth->error) << fourth->error->to_string();
  EXPECT_EQ(fourth->state, straight->state);
  std::string events = fourth->recorder.all_events();
  EXPECT_EQ(count(events, "6 warning: not saved, training goes on: the checkpoint of step 4: "), 1) << events;
  EXPECT_EQ(count(events, "not saved"), 1) << events;
  EXPECT_EQ(*list_checkpoints(runs.config.output + "/checkpoints"), (std::vector<int64_t>{8, 6, 2}));

  runs.config.output = runs.folder / "last";
  runs.config.checkpoint.every = 8;
  const std::unique_ptr<Outcome> eighth = go_with_fault(8, EIO, "rename");
  ASSERT_FALSE(eighth->error) << eighth->error->to_string();
  events = eighth->recorder.all_events();
  EXPECT_EQ(count(events, "8 warning: not saved, trying again: the checkpoint of step 8: "), 1) << events;
  EXPECT_EQ(*list_checkpoints(runs.config.output + "/checkpoints"), (std::vector<int64_t>{8}));

  runs.config.output = runs.folder / "full";
  runs.config.checkpoint.every = 2;
  std::optional<FullDisk> disk;
  const std::unique_ptr<Outcome> full = go(runs.config, "", -1, [&](int64_t step) {
    if (step == 7) disk.emplace(10'000);  // less than a checkpoint; step 6 may have to do without one, too
  });
  disk.reset();
  ASSERT_TRUE(full->error);
  EXPECT_EQ(full->error->code, ErrorCode::kIo);
  EXPECT_NE(full->error->message.find("the checkpoint of step 8: "), std::string::npos) << full->error->message;
  EXPECT_NE(full->error->message.find("No space left on device"), std::string::npos) << full->error->message;
  EXPECT_EQ(full->recorder.steps.size(), 8U);
  const std::string said = full->recorder.all_events();
  EXPECT_EQ(count(said, "8 failed: "), 1) << said;
  EXPECT_EQ(count(said, "metrics.jsonl could not be written until the end; records lost: "), 1) << said;
  EXPECT_FALSE(fs::exists(runs.config.output + "/model"));
  const std::unique_ptr<Outcome> resumed = go(runs.config, "auto");
  ASSERT_FALSE(resumed->error) << resumed->error->to_string();
  EXPECT_EQ(resumed->state, straight->state);
}

TEST(Run, AnOldCheckpointThatStaysIsAWarning) {
  Runs runs;
  runs.config.steps = 4;
  runs.config.checkpoint.keep_last = 1;
  std::unique_ptr<Outcome> outcome;
  {
    const FailingCall fault(0, EACCES, "rename", "/step-00000001");
    outcome = go(runs.config);
    EXPECT_EQ(fault.failed(), "rename");
  }
  ASSERT_FALSE(outcome->error) << outcome->error->to_string();
  const std::string events = outcome->recorder.all_events();
  EXPECT_EQ(count(events, "checkpoints/step-00000001: this old checkpoint cannot be removed: Permission denied"), 1) << events;
  EXPECT_EQ(count(events, "not saved"), 0) << events;
  EXPECT_EQ(*list_checkpoints(runs.config.output + "/checkpoints"), (std::vector<int64_t>{4})) << "the next save has removed it";
}

TEST(Run, WhatWasPassedOverIsSaidWhateverComesOfIt) {
  Runs runs;
  runs.config.steps = 2;
  fs::create_directories(runs.config.output + "/checkpoints/step-old");
  const std::unique_ptr<Outcome> begun = go(runs.config, "auto");  // a new run
  ASSERT_FALSE(begun->error) << begun->error->to_string();
  std::string events = begun->recorder.all_events();
  EXPECT_NE(events.find("checkpoints/step-old: this is not the name of a checkpoint"), std::string::npos) << events;
  EXPECT_NE(events.find("started: a new run"), std::string::npos) << events;

  fs::resize_file(runs.checkpoint(2) + "/model.safetensors", 100);
  TrainConfig other = runs.config;
  other.seed = 2;
  const std::unique_ptr<Outcome> refused = go(other, "auto");
  ASSERT_TRUE(refused->error);
  EXPECT_EQ(refused->error->code, ErrorCode::kInvalidArgument);
  for (const char* part : {"train.seed was 1 and is 2 now", "passed over: ", "step-00000002/model.safetensors", "step-old"})
    EXPECT_NE(refused->error->message.find(part), std::string::npos) << refused->error->message;

  for (const int64_t step : {1, 2}) fs::remove(runs.checkpoint(step) + "/manifest.json");
  const std::unique_ptr<Outcome> none = go(runs.config, "auto");
  ASSERT_TRUE(none->error);
  for (const char* part : {"none of the 2 checkpoints", "step-00000001", "step-00000002", "manifest.json", "step-old"})
    EXPECT_NE(none->error->message.find(part), std::string::npos) << none->error->message;
}

}  // namespace
}  // namespace glim
