#include "runtime/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <new>
#include <vector>

#include "runtime/atomic_file.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/hf_names.h"

namespace glim {
namespace {

namespace fs = std::filesystem;

constexpr char kLockName[] = ".lock";

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Every level that is new is synced, or a crash could take the run's folder with all its checkpoints.
Status make_folders(const std::string& path) {
  std::error_code error;
  std::vector<std::string> missing;
  for (std::string at = path; !fs::exists(at, error) && !error; at = parent_folder(at)) missing.push_back(at);
  if (!error) fs::create_directories(path, error);
  if (error) return io_error(path, "cannot create the folder", error.value());
  for (const std::string& folder : missing) GLIM_TRY(sync_folder(parent_folder(folder)));
  return ok();
}

// -1 when the file system has no locks. A lock goes with the process that holds it, however that ends.
Result<int> lock_folder(const std::string& path) {
  const std::string name = path + "/" + kLockName;
  const int file = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file < 0) return io_error(name, "cannot open", errno);
  if (::flock(file, LOCK_EX | LOCK_NB) == 0) return file;
  const int reason = errno;
  ::close(file);
  if (reason == EWOULDBLOCK)
    return invalid_argument(fmt::format("{}: another run saves its checkpoints here; choose another folder", path));
  if (reason == ENOLCK || reason == ENOSYS || reason == EOPNOTSUPP || reason == EINVAL) return -1;
  return io_error(name, "cannot lock", reason);
}

// ".step-00000120.tmp-PID-COUNTER": see temporary_sibling.
bool is_leftover(const std::string& name) { return name.starts_with(".step-") && name.find(".tmp-") != std::string::npos; }

Status remove_leftovers(const std::string& path) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (auto at = fs::directory_iterator(path, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    if (is_leftover(at->path().filename().string())) leftovers.push_back(at->path());
  }
  if (error) return io_error(path, "cannot list the folder", error.value());
  for (const fs::path& leftover : leftovers) {
    fs::remove_all(leftover, error);
    if (error) return io_error(leftover.string(), "cannot remove what an unfinished save has left", error.value());
  }
  return ok();
}

// Signals that ask the program to end go to other threads, so that they interrupt no system call of a save.
void block_signals() {
  sigset_t signals;
  ::sigfillset(&signals);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) ::sigdelset(&signals, fault);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

}  // namespace

Result<std::unique_ptr<CheckpointFolder>> CheckpointFolder::open(const std::string& path, const Retention& retention) {
  if (retention.keep_last < 0 || retention.keep_every < 0) {
    return invalid_argument(fmt::format("checkpoints to keep: the last {} and every {} steps; these numbers cannot be negative",
                                        retention.keep_last, retention.keep_every));
  }
  GLIM_TRY(make_folders(path));
  GLIM_ASSIGN(const int lock, lock_folder(path));
  std::unique_ptr<CheckpointFolder> folder(new CheckpointFolder(path, retention, lock));
  // Without a lock, nobody knows whether the process that writes them lives, perhaps on another machine.
  if (lock >= 0) GLIM_TRY(remove_leftovers(path));
  return folder;
}

CheckpointFolder::~CheckpointFolder() {
  (void)wait();
  if (lock_ >= 0) ::close(lock_);
}

Status CheckpointFolder::wait() {
  if (!writer_.joinable()) return ok();
  writer_.join();
  if (!*outcome_) return std::move(outcome_->error());
  last_saved_ = **outcome_;
  if (!last_saved_->not_removed.empty()) not_removed_ = last_saved_->not_removed;
  passed_over_.erase(last_saved_->step);  // when it was replaced
  return ok();
}

Status CheckpointFolder::save(const Model& model, const TrainingState& state) {
  GLIM_CHECK(state.step >= 0 && state.skipped_in_a_row >= 0, "a checkpoint of a negative step");
  Status before = wait();  // the snapshot that it wrote from is used again
  const auto start = std::chrono::steady_clock::now();
  Result<std::string> state_text = state_json(state);
  Status captured = state_text ? snapshot_.capture(model) : state_text.error();
  if (!captured) {
    if (!before) captured.error().message += "; and before that: " + before.error().message;
    return captured;
  }
  const double snapshot_seconds = seconds_since(start);
  finished_ = false;
  writer_ = std::thread([this, state, state_text = std::move(*state_text), snapshot_seconds] {
    block_signals();
    try {
      outcome_.emplace(write(state, state_text));
    } catch (const std::bad_alloc&) {
      outcome_.emplace(Error{ErrorCode::kOutOfMemory, "no memory for writing it"});
    }
    if (*outcome_) {
      (**outcome_).snapshot_seconds = snapshot_seconds;
    } else {
      Error& error = outcome_->error();
      error.message = fmt::format("the checkpoint of step {}: {}", state.step, error.message);
    }
    finished_ = true;
  });
  return before;
}

Result<SaveReport> CheckpointFolder::write(const TrainingState& state, const std::string& state_text) const {
  const auto start = std::chrono::steady_clock::now();
  const std::string path = path_ + "/" + checkpoint_name(state.step);
  const TemporaryFolder temporary(temporary_sibling(path));
  if (::mkdir(temporary.path.c_str(), 0777) != 0) return io_error(temporary.path, "cannot create the folder", errno);

  HfLayout layout = plan_hf_layout(snapshot_.weights());
  if (!state.hf_config.empty()) layout.files.emplace_back(kConfigName, state.hf_config);
  layout.files.emplace_back(kStateName, state_text);
  layout.files.emplace_back(kConfigurationName, state.configuration);
  Manifest manifest{state.step, {}};
  GLIM_ASSIGN(manifest.files, write_hf_files(temporary.path, layout, snapshot_.source()));
  std::vector<TensorSpec> optimizer = snapshot_.optimizer();
  sort_as_reference(optimizer);
  Checksum checksum;
  GLIM_TRY(write_safetensors(temporary.path + "/" + kOptimizerName, optimizer, std::nullopt, snapshot_.source(), &checksum));
  manifest.files[kOptimizerName] = checksum.digest();
  const std::string manifest_json = manifest_text(manifest);
  GLIM_TRY(write_file_atomically(temporary.path + "/" + kManifestName, manifest_json));
  SaveReport report{state.step, manifest_json.size()};
  for (const auto& [name, digest] : manifest.files) report.bytes += digest.bytes;

  // Every file, and the folder after the last of them, is synced. Now the name, in one step, then the folder that holds it.
  if (std::rename(temporary.path.c_str(), path.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) return io_error(path, "cannot give the finished checkpoint this name", errno);
    GLIM_TRY(replace_folder(temporary.path, path));  // the same step again: after resuming from an older one, say
  }
  GLIM_TRY(sync_folder(path_));
  report.not_removed = remove_old(state.step);
  report.write_seconds = seconds_since(start);
  return report;
}

// Checkpoints after `newest_step` belong to a run that was given up: they neither count nor go. They are replaced when this one
// gets there. What cannot be removed is tried again after the next save.
std::string CheckpointFolder::remove_old(int64_t newest_step) const {
  if (retention_.keep_last == 0) return "";
  const Result<std::vector<int64_t>> steps = list_checkpoints(path_);
  if (!steps) return fmt::format("old checkpoints are not removed: {}", steps.error().to_string());
  std::string first;
  int64_t num_kept = 0, num_failures = 0;
  for (const int64_t step : *steps) {
    if (step > newest_step) continue;
    if (num_kept < retention_.keep_last) {
      num_kept += passed_over_.contains(step) && step != newest_step ? 0 : 1;
      continue;
    }
    if (retention_.keep_every > 0 && step % retention_.keep_every == 0) continue;
    // First the name goes: what a crash leaves half-deleted does not look like a checkpoint.
    const std::string path = path_ + "/" + checkpoint_name(step);
    const TemporaryFolder doomed(temporary_sibling(path));
    if (std::rename(path.c_str(), doomed.path.c_str()) != 0 && num_failures++ == 0)
      first = io_error(path, "this old checkpoint cannot be removed", errno).to_string();
  }
  return num_failures < 2 ? first : fmt::format("{} (and {} more)", first, num_failures - 1);
}

Result<NewestCheckpoint> CheckpointFolder::newest() {
  GLIM_TRY(wait());
  GLIM_ASSIGN(NewestCheckpoint newest, find_newest_checkpoint(path_));
  passed_over_.clear();
  for (const PassedOver& each : newest.passed_over) passed_over_.insert(each.step);
  return newest;
}

}  // namespace glim
