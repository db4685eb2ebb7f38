#pragma once
// A program with memory on the CPU or on the GPU, and values in and out of it as doubles.
#include <string_view>

#include "ops/bf16.h"
#include "runtime/cpu_executor.h"
#include "runtime/cuda_arenas.h"
#include "runtime/cuda_executor.h"
#include "tests/gpu/spike_program.h"
#include "tests/ops/interpreter.h"

namespace glim::testing {

class Machine {
 public:
  explicit Machine(const Spike& spike) : spike_(spike) {}
  virtual ~Machine() = default;
  virtual Status run() = 0;
  void set(std::string_view leaf, const std::vector<double>& values);
  void set(const Values& values) {
    for (const auto& [name, each] : values) set(name, each);
  }
  [[nodiscard]] std::vector<double> output(std::string_view name);
  [[nodiscard]] std::vector<double> state(std::string_view name);
  [[nodiscard]] std::vector<std::byte> state_bytes(std::string_view name);
  double scalar(std::string_view name) { return output(name).at(0); }

 protected:
  virtual void write(const TensorView& to, std::span<const std::byte> bytes) = 0;
  virtual void read(const TensorView& from, std::span<std::byte> bytes) = 0;
  virtual const Executable& executable() = 0;
  const Spike& spike_;

 private:
  std::vector<double> values_of(const TensorView& view);
};

// Both poison every arena with bytes of ones: NaN as a float, -1 as an integer.
class CpuMachine final : public Machine {
 public:
  explicit CpuMachine(const Spike& spike);
  Status run() override { return executor_.run(executable_); }

 private:
  void write(const TensorView& to, std::span<const std::byte> bytes) override;
  void read(const TensorView& from, std::span<std::byte> bytes) override;
  const Executable& executable() override { return executable_; }
  Arenas arenas_;
  Executable executable_;
  CpuExecutor executor_;
};

class CudaMachine final : public Machine {
 public:
  explicit CudaMachine(const Spike& spike);
  Status run() override { return executor_->run(executable_); }
  Status launch() { return executor_->launch(executable_); }
  CudaExecutor& executor() { return *executor_; }

 private:
  void write(const TensorView& to, std::span<const std::byte> bytes) override;
  void read(const TensorView& from, std::span<std::byte> bytes) override;
  const Executable& executable() override { return executable_; }
  CudaArenas arenas_;
  Executable executable_;
  std::unique_ptr<CudaExecutor> executor_;
};

}  // namespace glim::testing
