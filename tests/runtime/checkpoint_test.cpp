// What a checkpoint promises: every bit comes back, the folder is a Hugging Face folder, other runs are refused, old ones go by rule, and
// training goes on meanwhile.
#include <thread>

#include "runtime/weights.h"
#include "tests/runtime/checkpoint_fixture.h"
#include "tests/runtime/system_calls.h"

namespace glim {
namespace {

void expect_equal(const TrainingState& a, const TrainingState& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.skipped_in_a_row, b.skipped_in_a_row);
  EXPECT_EQ(a.identity, b.identity);
  EXPECT_EQ(a.choices, b.choices);
  EXPECT_EQ(a.algorithms, b.algorithms);
  EXPECT_EQ(a.configuration, b.configuration);
  EXPECT_EQ(a.hf_config, b.hf_config);
}

class CheckpointOf : public testing::TestWithParam<DType> {};

TEST_P(CheckpointOf, RestoresEveryBitAndTrainingGoesOnAlike) {
  const ScratchFolder scratch;
  TrainedModel straight(GetParam());
  for (int64_t step = 0; step < 3; ++step) straight.train(step);
  const States saved = straight.read();
  const std::string first = straight.model().compiled().parameters.front().name;
  EXPECT_TRUE(saved.contains(moment_name(first, 0)) && saved.contains(moment_name(first, 1)) && saved.contains(kStepName.data()));
  EXPECT_EQ(saved.contains(master_name(first)), GetParam() == DType::kBF16);
  const auto folder = open_folder(scratch / "run/checkpoints");
  ASSERT_TRUE(save_now(*folder, straight, 3));
  ASSERT_TRUE(folder->last_saved());
  EXPECT_EQ(folder->last_saved()->step, 3);
  for (int64_t step = 3; step < 6; ++step) straight.train(step);
  EXPECT_NE(straight.read(), saved);

  TrainedModel resumed(GetParam());
  resumed.clear();
  const Result<NewestCheckpoint> newest = folder->newest();
  ASSERT_TRUE(newest && newest->found && newest->passed_over.empty());
  EXPECT_EQ(newest->found->path, scratch / "run/checkpoints/step-00000003");
  const Result<Resumed> restored = restore(resumed.model(), *newest->found, resumed.state(0));
  ASSERT_TRUE(restored) << restored.error().to_string();
  expect_equal(restored->state, straight.state(3));
  EXPECT_TRUE(restored->changed_choices.empty());
  EXPECT_EQ(resumed.read(), saved);
  for (int64_t step = 3; step < 6; ++step) resumed.train(step);
  EXPECT_EQ(resumed.read(), straight.read());
}
INSTANTIATE_TEST_SUITE_P(DTypes, CheckpointOf, testing::Values(DType::kF64, DType::kF32, DType::kBF16),
                         [](const auto& each) { return std::string(to_string(each.param)); });

TEST(Checkpoint, IsAHuggingFaceFolder) {
  const ScratchFolder scratch;
  TrainedModel trained;
  trained.train(0);
  const auto folder = open_folder(scratch.path());
  ASSERT_TRUE(save_now(*folder, trained, 1));
  EXPECT_EQ(names_in(scratch / "step-00000001"), (std::vector<std::string>{"config.json", "manifest.json", "model.safetensors",
                                                                           "optimizer.safetensors", "state.json", "train.toml"}));
  const Result<ModelSource> source = open_model(scratch / "step-00000001", {}, "");
  ASSERT_TRUE(source) << source.error().to_string();
  ASSERT_TRUE(source->checkpoint);
  TrainedModel other;
  other.clear();
  ASSERT_TRUE(load_weights(other.model(), *source->checkpoint, source->spec.hf.ignore_tensors));
  for (const ModelParameter& parameter : trained.model().compiled().parameters) {
    EXPECT_EQ(other.model().state(parameter.name)->bytes, trained.model().state(parameter.name)->bytes) << parameter.name;
  }
  EXPECT_EQ(read_file(scratch / "step-00000001/train.toml"), trained.state(1).configuration);
  EXPECT_EQ(read_file(scratch / "step-00000001/config.json"), trained.state(1).hf_config);
}

TEST(Checkpoint, OfAnotherRunIsRefusedWithTheDifference) {
  const ScratchFolder scratch;
  TrainedModel trained;
  const auto folder = open_folder(scratch.path());
  ASSERT_TRUE(save_now(*folder, trained, 1));
  const Result<NewestCheckpoint> newest = folder->newest();
  ASSERT_TRUE(newest && newest->found);
  trained.train(1);
  const States before = trained.read();
  const auto refusal = [&](Model& model, const TrainingState& now) {
    const Result<Resumed> restored = restore(model, *newest->found, now);
    EXPECT_FALSE(restored);
    return restored ? Error{} : restored.error();
  };
  TrainingState now = trained.state(1);
  now.identity["train.tokens"] = "32";
  now.identity.erase("train.seed");
  now.identity["data"] = "";
  const Error error = refusal(trained.model(), now);
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.message, scratch / "step-00000001" +
                               " is of another run: data was not set and is empty now; train.seed was 1 and is not "
                               "set now; train.tokens was 16 and is 32 now. Use the values of then, or begin a new run in another folder");
  EXPECT_EQ(trained.read(), before);

  TrainedModel wider(DType::kF32, {"feed_forward=48"}), deeper(DType::kF32, {"num_layers=5"}), narrow(DType::kBF16), precise(DType::kF64);
  const States untouched = wider.read();
  EXPECT_NE(refusal(wider.model(), wider.state(1)).message.find("of the wrong shape"), std::string::npos);
  EXPECT_EQ(wider.read(), untouched);
  EXPECT_NE(refusal(deeper.model(), deeper.state(1)).message.find("missing"), std::string::npos);
  EXPECT_NE(refusal(narrow.model(), narrow.state(1)).message.find(" is F32["), std::string::npos);
  EXPECT_NE(refusal(precise.model(), precise.state(1)).message.find("the model has F64["), std::string::npos);
}

TEST(Checkpoint, ChangedChoicesAreReported) {
  const ScratchFolder scratch;
  TrainedModel trained;
  const auto folder = open_folder(scratch.path());
  ASSERT_TRUE(save_now(*folder, trained, 1));
  const Result<NewestCheckpoint> newest = folder->newest();
  ASSERT_TRUE(newest && newest->found);
  TrainingState now = trained.state(1);
  now.choices["matrix_products"] = "openblas 0.3.21";
  const Result<Resumed> restored = restore(trained.model(), *newest->found, now);
  ASSERT_TRUE(restored);
  EXPECT_EQ(restored->changed_choices, std::vector<std::string>{"matrix_products was eigen 3.4.0 avx2 and is openblas 0.3.21 now"});
}

TEST(Checkpoint, OldOnesGoByRule) {
  TrainedModel trained;
  const auto kept = [&](const Retention& retention, const std::vector<int64_t>& steps) {
    const ScratchFolder scratch(fast_parent());
    const auto folder = open_folder(scratch.path(), retention);
    for (const int64_t step : steps) EXPECT_TRUE(save_now(*folder, trained, step));
    std::vector<int64_t> left = *list_checkpoints(scratch.path());
    EXPECT_EQ(names_in(scratch.path()).size(), left.size() + 1);  // and the lock
    std::reverse(left.begin(), left.end());
    return left;
  };
  using Steps = std::vector<int64_t>;
  EXPECT_EQ(kept({2, 0}, {10, 20, 30, 40}), (Steps{30, 40}));
  EXPECT_EQ(kept({1, 20}, {10, 20, 30, 40, 50}), (Steps{20, 40, 50}));
  EXPECT_EQ(kept({0, 0}, {1, 2, 3, 4, 5}), (Steps{1, 2, 3, 4, 5}));
  EXPECT_EQ(kept({1, 0}, {10, 10}), (Steps{10}));
  EXPECT_EQ(kept({1, 0}, {10, 100000000, 123456789012}), (Steps{123456789012}));
  // Back from 40 to 20, say because 40 was not wanted: what is newer by number neither counts nor goes.
  EXPECT_EQ(kept({2, 0}, {10, 20, 40, 25, 30}), (Steps{25, 30, 40}));
  EXPECT_FALSE(CheckpointFolder::open("/nowhere", {-1, 0}));
}

TEST(Checkpoint, DamagedOnesDoNotCountAsKept) {
  const ScratchFolder scratch;
  TrainedModel trained;
  const auto folder = open_folder(scratch.path(), {2, 0});
  ASSERT_TRUE(save_now(*folder, trained, 10));
  ASSERT_TRUE(save_now(*folder, trained, 20));
  write_file(scratch / "step-00000020/state.json", "{}");
  const Result<NewestCheckpoint> newest = folder->newest();
  ASSERT_TRUE(newest && newest->found);
  EXPECT_EQ(newest->found->state.step, 10);
  ASSERT_TRUE(save_now(*folder, trained, 30));
  EXPECT_EQ(*list_checkpoints(scratch.path()), (std::vector<int64_t>{30, 20, 10}));
  ASSERT_TRUE(save_now(*folder, trained, 40));
  EXPECT_EQ(*list_checkpoints(scratch.path()), (std::vector<int64_t>{40, 30}));
}

TEST(Checkpoint, HoldsTheMomentOfTheSaveWhileTrainingGoesOn) {
  const ScratchFolder scratch;
  TrainedModel trained(DType::kF32, {}, 2);
  trained.train(0);
  const States at_save = trained.read();
  const auto folder = open_folder(scratch.path());
  {
    const HeldWrites held;
    ASSERT_TRUE(folder->save(trained.model(), trained.state(1)));
    EXPECT_TRUE(folder->saving());
    for (int64_t step = 1; step < 6; ++step) trained.train(step);  // all of it before the first byte is written
    EXPECT_TRUE(folder->saving());
    EXPECT_TRUE(list_checkpoints(scratch.path())->empty());
  }
  const States later = trained.read();
  EXPECT_NE(later, at_save);
  ASSERT_TRUE(folder->save(trained.model(), trained.state(6)));  // waits for the first
  trained.train(6);
  ASSERT_TRUE(folder->wait());
  EXPECT_FALSE(folder->saving());
  for (const auto& [step, expected] : {std::pair{"step-00000001", at_save}, std::pair{"step-00000006", later}}) {
    const Result<Checkpoint> checkpoint = open_checkpoint(scratch / step);
    ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
    TrainedModel other;
    ASSERT_TRUE(restore(other.model(), *checkpoint, other.state(0)));
    EXPECT_EQ(other.read(), expected) << step;
  }
}

TEST(Checkpoint, OneRunPerFolderAndLeftoversGo) {
  const ScratchFolder scratch;
  TrainedModel trained;
  {
    const auto folder = open_folder(scratch.path());
    ASSERT_TRUE(save_now(*folder, trained, 1));
    std::filesystem::create_directory(scratch / ".step-00000002.tmp-1-0");  // of the run that is alive
    const auto second = CheckpointFolder::open(scratch.path(), {});
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().message, scratch.path() + ": another run saves its checkpoints here; choose another folder");
    EXPECT_TRUE(std::filesystem::exists(scratch / ".step-00000002.tmp-1-0"));
  }
  write_file(scratch / ".step-00000002.tmp-1-0/model.safetensors", "half");
  write_file(scratch / "notes.txt", "mine");
  const auto folder = open_folder(scratch.path());
  EXPECT_EQ(names_in(scratch.path()), (std::vector<std::string>{".lock", "notes.txt", "step-00000001"}));
}

TEST(Checkpoint, NeedsNoHuggingFaceConfiguration) {
  const ScratchFolder scratch;
  TrainedModel trained;
  trained.fill(1);
  TrainingState state = trained.state(1);
  state.hf_config = state.configuration = "";
  const auto folder = open_folder(scratch / "new/run/checkpoints/");
  ASSERT_TRUE(folder->save(trained.model(), state));
  const Result<NewestCheckpoint> newest = folder->newest();
  ASSERT_TRUE(newest && newest->found);
  trained.clear();
  const Result<Resumed> restored = restore(trained.model(), *newest->found, state);
  ASSERT_TRUE(restored);
  expect_equal(restored->state, state);
  EXPECT_EQ(trained.read(), trained.expected_fill(1));
}

TEST(Checkpoint, NothingToResumeFrom) {
  const ScratchFolder scratch;
  const Result<NewestCheckpoint> none = find_newest_checkpoint(scratch / "absent");
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->found);
  write_file(scratch / "file", "x");
  EXPECT_FALSE(find_newest_checkpoint(scratch / "file"));
  for (const char* name : {"step-12", "step-0000000x", "step-99999999999999999999", "step--0000001"})
    std::filesystem::create_directory(scratch / name);
  const Result<NewestCheckpoint> strange = find_newest_checkpoint(scratch.path());
  ASSERT_TRUE(strange);
  EXPECT_EQ(strange->passed_over.size(), 4U);
  for (const PassedOver& each : strange->passed_over) EXPECT_NE(each.reason.find("not the name of a checkpoint"), std::string::npos);
}

TEST(Checkpoint, StateThatCannotBeStoredIsSaidAtOnce) {
  const ScratchFolder scratch;
  TrainedModel trained;
  const auto folder = open_folder(scratch.path());
  TrainingState state = trained.state(1);
  state.identity["data"] = "\xff";
  const Status saved = folder->save(trained.model(), state);
  ASSERT_FALSE(saved);
  EXPECT_NE(saved.error().message.find("not UTF-8"), std::string::npos);
  EXPECT_TRUE(folder->wait());
  EXPECT_TRUE(save_now(*folder, trained, 1));
}

TEST(Checksum, IsXxh3) {
  Checksum checksum;
  EXPECT_EQ(checksum.digest(), (Digest{0, "99aa06d3014798d86001c324468d497f"}));
  checksum.add("abc");
  EXPECT_EQ(checksum.digest(), (Digest{3, "06b05ab6733a618578af5f94892f3950"}));  // xxhsum -H2
}

}  // namespace
}  // namespace glim
