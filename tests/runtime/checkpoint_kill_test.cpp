// kill -9 at random moments of a save: the newest checkpoint is whole and holds its step's content, and none that was finished is lost.
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <csignal>

#include "tests/runtime/checkpoint_fixture.h"

namespace glim {
namespace {

constexpr int64_t kKept = 3;

// Goes on from the newest checkpoint and saves without end; writes each step to `report`, negative when its save begins, as it is when it
// is durable.
[[noreturn]] void save_until_killed(TrainedModel& trained, const std::string& path, int report) {
  const auto folder = open_folder(path, {kKept, 0});
  const Result<NewestCheckpoint> newest = folder->newest();
  int64_t step = newest && newest->found ? newest->found->state.step : 0;
  for (;;) {
    ++step;
    trained.fill(step);
    const std::array<int64_t, 2> begins_and_ends{-step, step};
    if (::write(report, begins_and_ends.data(), sizeof step) != sizeof step) ::_exit(2);
    // Every fourth step is saved twice, so that a folder is replaced.
    for (int64_t k = 0; k < (step % 4 == 0 ? 2 : 1); ++k) {
      if (!save_now(*folder, trained, step)) ::_exit(1);
    }
    if (::write(report, &begins_and_ends[1], sizeof step) != sizeof step) ::_exit(2);
  }
}

TEST(CheckpointKill, LosesNothing) {
  const ScratchFolder scratch(fast_parent());
  TrainedModel trained(DType::kF32, {"num_layers=1"});  // without threads: this process forks
  int64_t durable = 0;                                  // the last step that a process said it has saved
  int num_cut_off = 0;                                  // kills that a save had begun before
  for (int round = 0; round < 200; ++round) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe(ends.data()), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_until_killed(trained, scratch.path(), ends[1]);
    ::close(ends[1]);
    int64_t step = 0;
    const auto next = [&] { return ::read(ends[0], &step, sizeof step) == sizeof step; };
    // The first save is left alone and measured; the second is hit somewhere in about that time.
    ASSERT_TRUE(next() && step < 0);
    const auto start = std::chrono::steady_clock::now();
    ASSERT_TRUE(next() && step > 0);
    durable = step;
    const std::chrono::duration<double, std::micro> one_save = std::chrono::steady_clock::now() - start;
    ASSERT_TRUE(next() && step < 0);
    ::usleep(static_cast<useconds_t>(one_save.count() * uniform_draw(make_stream(7, "delays"), static_cast<uint64_t>(round))));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the saving process ended by itself: " << status;
    while (next()) durable = std::max(durable, step);
    ::close(ends[0]);

    for (const std::string& name : names_in(scratch.path())) num_cut_off += name.starts_with(".step-") ? 1 : 0;
    const Result<NewestCheckpoint> newest = find_newest_checkpoint(scratch.path());
    ASSERT_TRUE(newest && newest->found);
    ASSERT_TRUE(newest->passed_over.empty()) << newest->passed_over.front().reason;
    const int64_t found = newest->found->state.step;
    ASSERT_GE(found, durable);
    ASSERT_LE(found, durable + 1);
    trained.clear();
    ASSERT_TRUE(restore(trained.model(), *newest->found, trained.state(0)));
    ASSERT_EQ(trained.read(), trained.expected_fill(found));
    for (int64_t kept = durable; kept > std::max<int64_t>(0, found - kKept); --kept) {
      const Result<Checkpoint> older = open_checkpoint(scratch / checkpoint_name(kept));
      ASSERT_TRUE(older) << "round " << round << ": " << older.error().to_string();
    }
  }
  EXPECT_GT(num_cut_off, 50) << "the kills did not hit saves";
  RecordProperty("steps", static_cast<int>(durable));
  RecordProperty("cut_off", num_cut_off);
}

}  // namespace
}  // namespace glim
