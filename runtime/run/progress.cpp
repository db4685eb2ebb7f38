#include "runtime/run/progress.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace glim {

Progress ProgressMeter::add(const StepMetrics& metrics, double elapsed_seconds) {
  loss_ += metrics.loss;
  ++num_steps_;
  seconds_ += metrics.seconds;
  flops_ += metrics.flops;
  num_correct_ += metrics.num_correct;
  num_valid_ += metrics.num_valid;
  num_tokens_ += metrics.num_tokens;

  Progress progress;
  progress.loss = loss_ / static_cast<double>(num_steps_);
  progress.token_accuracy = num_valid_ > 0 ? static_cast<double>(num_correct_) / static_cast<double>(num_valid_) : 0;
  progress.tokens_per_second = static_cast<double>(num_tokens_) / seconds_;
  progress.flops_per_second = flops_ / seconds_;
  if (config_.peak_tflops > 0) progress.mfu = progress.flops_per_second / (config_.peak_tflops * 1e12);
  progress.elapsed_seconds = elapsed_seconds;
  const auto done = static_cast<double>(std::max<int64_t>(1, metrics.step - first_step_));
  progress.remaining_seconds = elapsed_seconds / done * static_cast<double>(config_.steps - metrics.step);
  if (config_.max_seconds > 0)
    progress.remaining_seconds = std::max(0.0, std::min(progress.remaining_seconds, config_.max_seconds - elapsed_seconds));
  progress.resident_bytes = resident_bytes();
  progress.due = metrics.step == first_step_ + 1 || metrics.step % config_.log_every == 0 || metrics.step == config_.steps;
  if (progress.due) {
    loss_ = seconds_ = flops_ = 0;
    num_steps_ = num_correct_ = num_valid_ = num_tokens_ = 0;
  }
  return progress;
}

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0, resident = 0;
  if (!(file >> total >> resident)) return 0;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace glim
