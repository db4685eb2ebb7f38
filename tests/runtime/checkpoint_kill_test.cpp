// kill -9 at random moments of a save: the newest checkpoint is whole and holds its step's content, and none that was finished is lost.
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <csignal>
#include <optional>

#include "tests/runtime/checkpoint_fixture.h"
#include "tests/runtime/system_calls.h"

namespace glim {
namespace {

constexpr int64_t kKept = 3;
constexpr int kCalls = 100;  // about as many as a save makes

// The kernel's kill -9 of this process after a while: nobody has to be woken up for it, so it hits what it is meant to hit.
void kill_after(std::chrono::nanoseconds delay) {
  struct sigevent event {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  struct itimerspec when {};
  when.it_value = {delay.count() / 1'000'000'000, delay.count() % 1'000'000'000 + 1};  // 0 would mean never
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || ::timer_settime(timer, 0, &when, nullptr) != 0) ::_exit(3);
}

// Goes on from the newest checkpoint and saves without end; writes each step to `report` once it is durable. The first save warms up, the
// second is measured, and the kill comes in the third, or soon after: after some part of the time of a save, or at a system call.
[[noreturn]] void save_until_killed(TrainedModel& trained, const std::string& path, int report, double moment, bool at_call) {
  ::alarm(60);  // the kill must come before
  const auto folder = open_folder(path, {kKept, 0});
  const Result<NewestCheckpoint> newest = folder->newest();
  const int64_t found = newest && newest->found ? newest->found->state.step : 0;
  std::chrono::duration<double, std::nano> one_save{};
  std::optional<FailingCall> killing;
  for (int64_t step = found + 1;; ++step) {
    trained.fill(step);
    if (step == found + 3 && at_call) killing.emplace(static_cast<int64_t>(moment * kCalls), kKillProcess);
    if (step == found + 3 && !at_call) kill_after(std::chrono::nanoseconds(static_cast<int64_t>(moment * one_save.count())));
    const auto start = std::chrono::steady_clock::now();
    // Every fourth step is saved twice, so that a folder is replaced.
    for (int64_t k = 0; k < (step % 4 == 0 ? 2 : 1); ++k) {
      if (!save_now(*folder, trained, step)) ::_exit(1);
    }
    if (::write(report, &step, sizeof step) != sizeof step) ::_exit(2);
    one_save = std::chrono::steady_clock::now() - start;
  }
}

TEST(CheckpointKill, LosesNothing) {
  const ScratchFolder scratch(fast_parent());
  TrainedModel trained(DType::kF32, {"num_layers=1"});  // without threads: this process forks
  int64_t durable = 0;                                  // the last step that a process said it has saved
  int num_cut_off = 0;                                  // kills that left an unfinished folder
  for (int round = 0; round < 200; ++round) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe(ends.data()), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    const double moment = uniform_draw(make_stream(7, "moments"), static_cast<uint64_t>(round));
    if (child == 0) save_until_killed(trained, scratch.path(), ends[1], moment, round % 2 == 0);
    ::close(ends[1]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the saving process ended by itself: " << status;
    for (int64_t step = 0; ::read(ends[0], &step, sizeof step) == sizeof step;) durable = step;
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
