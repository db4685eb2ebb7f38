// A save that fails costs nothing but itself: every system call of a save fails once, writes are cut short, and a disk is full.
#include <sys/mount.h>

#include <cerrno>

#include "tests/runtime/checkpoint_fixture.h"
#include "tests/runtime/system_calls.h"

namespace glim {
namespace {

bool holds(TrainedModel& trained, const std::string& path, const States& expected) {
  const Result<Checkpoint> checkpoint = open_checkpoint(path);
  EXPECT_TRUE(checkpoint) << checkpoint.error().to_string();
  if (!checkpoint) return false;
  trained.clear();
  EXPECT_TRUE(restore(trained.model(), *checkpoint, trained.state(0)));
  return trained.read() == expected;
}

class CheckpointFault : public testing::TestWithParam<int> {};

TEST_P(CheckpointFault, OfAnyCallCostsOneSave) {
  const std::string reason = std::strerror(GetParam());
  for (const bool same_step : {false, true}) {
    const ScratchFolder scratch(fast_parent());
    TrainedModel trained(DType::kF32, {"num_layers=1"});
    const auto folder = open_folder(scratch.path(), {2, 0});
    int64_t step = 1;
    trained.fill(step);
    ASSERT_TRUE(save_now(*folder, trained, step));
    std::map<std::string, int> failures;
    int num_not_removed = 0;
    for (int64_t k = 0;; ++k) {
      ASSERT_LT(k, 1000);
      const int64_t before = step;
      if (!same_step) ++step;
      trained.fill(step);
      std::string failed;
      Status saved = ok();
      {
        const FailingCall fault(k, GetParam());
        saved = save_now(*folder, trained, step);
        failed = fault.failed();
      }
      if (failed.empty()) {
        ASSERT_TRUE(saved) << saved.error().to_string();
        break;
      }
      SCOPED_TRACE(testing::Message() << "call " << k << ", " << failed);
      ++failures[failed];
      if (const std::string text = folder->take_not_removed(); !text.empty()) {  // the save is good
        ++num_not_removed;
        EXPECT_TRUE(saved);
        EXPECT_NE(text.find("this old checkpoint cannot be removed: " + reason), std::string::npos) << text;
        EXPECT_TRUE(holds(trained, scratch / checkpoint_name(step), trained.expected_fill(step)));
        EXPECT_EQ(list_checkpoints(scratch.path())->size(), 3U);
      } else {
        ASSERT_FALSE(saved);
        EXPECT_EQ(saved.error().code, ErrorCode::kIo);
        const std::string& message = saved.error().message;
        EXPECT_EQ(message.find("the checkpoint of step " + std::to_string(step) + ": " + scratch.path()), 0U) << message;
        EXPECT_NE(message.find(reason), std::string::npos) << message;
        EXPECT_TRUE(folder->wait()) << "said twice";
        for (const std::string& name : names_in(scratch.path())) EXPECT_FALSE(name.starts_with(".step-")) << name;
        EXPECT_TRUE(holds(trained, scratch / checkpoint_name(before), trained.expected_fill(before)));
        const Result<NewestCheckpoint> newest = folder->newest();
        ASSERT_TRUE(newest && newest->found && newest->passed_over.empty());
        EXPECT_GE(newest->found->state.step, before);
      }
      if (!same_step) ++step;
      trained.fill(step);
      ASSERT_TRUE(save_now(*folder, trained, step));
      EXPECT_TRUE(holds(trained, scratch / checkpoint_name(step), trained.expected_fill(step)));
      EXPECT_LE(list_checkpoints(scratch.path())->size(), 2U);
    }
    for (const char* name : {"mkdir", "open", "write", "fsync", "rename", "close"}) EXPECT_GT(failures[name], 0) << name;
    EXPECT_EQ(failures["renameat2"], same_step ? 1 : 0);
    EXPECT_EQ(num_not_removed, same_step ? 0 : 1);
  }
}
INSTANTIATE_TEST_SUITE_P(Errors, CheckpointFault, testing::Values(EIO, ENOSPC),
                         [](const auto& each) { return each.param == EIO ? "EIO" : "ENOSPC"; });

TEST(Checkpoint, InterruptedAndShortWritesAreGoneOnWith) {
  const ScratchFolder scratch(fast_parent());
  TrainedModel trained;
  const auto folder = open_folder(scratch.path());
  trained.fill(1);
  {
    const RaggedWrites ragged;
    ASSERT_TRUE(save_now(*folder, trained, 1));
  }
  EXPECT_TRUE(holds(trained, scratch / "step-00000001", trained.expected_fill(1)));
}

TEST(Checkpoint, UnreadableSectorsArePassedOver) {
  const ScratchFolder scratch(fast_parent());
  TrainedModel trained;
  const auto folder = open_folder(scratch.path());
  ASSERT_TRUE(save_now(*folder, trained, 1));
  ASSERT_TRUE(save_now(*folder, trained, 2));
  const FailingCall fault(0, EIO, "read");
  const Result<NewestCheckpoint> newest = folder->newest();
  ASSERT_TRUE(newest && newest->found);
  EXPECT_EQ(newest->found->state.step, 1);
  ASSERT_EQ(newest->passed_over.size(), 1U);
  EXPECT_NE(newest->passed_over[0].reason.find("cannot read: Input/output error"), std::string::npos) << newest->passed_over[0].reason;
}

// A file system of so many bytes, where the test may mount one.
class SmallDisk {
 public:
  explicit SmallDisk(uint64_t bytes) {
    is_mounted_ = ::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, ("size=" + std::to_string(bytes)).c_str()) == 0;
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (is_mounted_) ::umount(folder_.path().c_str());
  }
  [[nodiscard]] bool is_mounted() const { return is_mounted_; }
  [[nodiscard]] const std::string& path() const { return folder_.path(); }

 private:
  ScratchFolder folder_;
  bool is_mounted_ = false;
};

TEST(Checkpoint, FullDiskEndsNothing) {
  TrainedModel trained;
  uint64_t bytes = 0;
  {
    const ScratchFolder scratch(fast_parent());
    const auto folder = open_folder(scratch.path());
    ASSERT_TRUE(save_now(*folder, trained, 1));
    bytes = folder->last_saved()->bytes;
  }
  const SmallDisk disk(bytes * 5 / 2);
  if (!disk.is_mounted()) GTEST_SKIP() << "this user cannot mount a small disk; CheckpointFault makes ENOSPC at every call";
  const auto folder = open_folder(disk.path() + "/checkpoints");
  for (const int64_t step : {1, 2}) {
    trained.fill(step);
    ASSERT_TRUE(save_now(*folder, trained, step));
  }
  for (const int64_t step : {3, 4}) {
    trained.fill(step);
    ASSERT_TRUE(folder->save(trained.model(), trained.state(step)));
    const Status saved = folder->wait();
    ASSERT_FALSE(saved);
    EXPECT_EQ(saved.error().code, ErrorCode::kIo);
    EXPECT_NE(saved.error().message.find("No space left on device"), std::string::npos) << saved.error().message;
    EXPECT_EQ(names_in(folder->path()), (std::vector<std::string>{".lock", "step-00000001", "step-00000002"}));
    EXPECT_TRUE(holds(trained, folder->path() + "/step-00000002", trained.expected_fill(2)));
  }
  std::filesystem::remove_all(folder->path() + "/step-00000001");
  trained.fill(5);
  // An error that nobody waited for is said by the next save, which goes on all the same.
  ASSERT_TRUE(save_now(*folder, trained, 5));
  ASSERT_TRUE(folder->save(trained.model(), trained.state(6)));
  while (folder->saving()) ::usleep(1000);
  trained.fill(7);
  std::filesystem::remove_all(folder->path() + "/step-00000002");
  const Status seventh = folder->save(trained.model(), trained.state(7));
  ASSERT_FALSE(seventh);
  EXPECT_EQ(seventh.error().message.find("the checkpoint of step 6: "), 0U) << seventh.error().message;
  ASSERT_TRUE(folder->wait());
  EXPECT_TRUE(holds(trained, folder->path() + "/step-00000007", trained.expected_fill(7)));
}

}  // namespace
}  // namespace glim
