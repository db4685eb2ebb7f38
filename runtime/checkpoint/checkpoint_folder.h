#pragma once
// Saving checkpoints while training goes on. One folder per save, complete or not there:
//
//   step-00000120/  config.json, model.safetensors (shards when large)   a Hugging Face folder like any other
//                   optimizer.safetensors                                master weights, moments, step count
//                   state.json, train.toml                               TrainingState
//                   manifest.json                                        bytes and checksum of each file
#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/snapshot.h"

namespace glim {

// Which checkpoints stay when a new one has been saved: those that either rule keeps.
struct Retention {
  int64_t keep_last = 3;   // the newest ones, the new one included; 0 = all
  int64_t keep_every = 0;  // those of steps that it divides; 0 = none
};

struct SaveReport {
  int64_t step = 0;
  uint64_t bytes = 0;                              // of all files
  double snapshot_seconds = 0, write_seconds = 0;  // the caller of save() waits for the first only
  std::string not_removed;                         // which old checkpoints could not be removed, and why; "" = none
};

class CheckpointFolder {
 public:
  // Makes the folder when it is not there, locks it for this object, and removes what saves that a crash cut off have left.
  // kInvalidArgument for a negative retention, or when another process, or object, saves into this folder.
  [[nodiscard]] static Result<std::unique_ptr<CheckpointFolder>> open(const std::string& path, const Retention& retention);
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;
  ~CheckpointFolder();  // waits for a save in flight

  // Waits for the save before, if it is still being written; copies all state; then writes on a thread of its own. A save that
  // fails leaves older checkpoints as they are and nothing else behind. The error returned is this save's when it could not start,
  // otherwise that of the save before: then this save goes on all the same. Every error is returned once.
  Status save(const Model& model, const TrainingState& state);
  // The result of the save in flight, or of the last one when nobody has heard of it; ok when there is none. kIo says what failed.
  Status wait();
  // Of the saves that save() and wait() have seen since the last call: SaveReport::not_removed. Said once; such a save is a good one.
  [[nodiscard]] std::string take_not_removed() { return std::exchange(not_removed_, {}); }
  [[nodiscard]] bool started() const { return writer_.joinable(); }               // after save(): whether this save is on its way, or done
  [[nodiscard]] bool saving() const { return writer_.joinable() && !finished_; }  // when false, wait() does not wait
  [[nodiscard]] const std::optional<SaveReport>& last_saved() const { return last_saved_; }  // as of the last save() or wait()

  // find_newest_checkpoint of this folder, after wait(). Those passed over do not count as kept ones.
  [[nodiscard]] Result<NewestCheckpoint> newest();
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  CheckpointFolder(std::string path, const Retention& retention, int lock) : path_(std::move(path)), retention_(retention), lock_(lock) {}
  Result<SaveReport> write(const TrainingState& state, const std::string& state_text) const;
  std::string remove_old(int64_t newest_step) const;

  std::string path_;
  Retention retention_;
  int lock_ = -1;                  // file descriptor; -1: this file system has no locks
  std::set<int64_t> passed_over_;  // by newest()
  Snapshot snapshot_;
  std::thread writer_;
  std::atomic<bool> finished_{false};
  std::optional<Result<SaveReport>> outcome_;  // written by the writer, read after it was joined
  std::optional<SaveReport> last_saved_;
  std::string not_removed_;
};

}  // namespace glim
