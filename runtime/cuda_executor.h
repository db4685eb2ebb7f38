#pragma once
#include <memory>
#include <span>

#include "runtime/executable.h"

namespace glim {

// Runs programs on the CUDA device that is current where it is made, whatever is current in the threads that use it. The first run of an
// executable launches its steps one by one (that loads the kernels and chooses the matrix products) and then captures them into a CUDA
// graph; every later run replays the graph, which allocates nothing. Executables must outlive the executor, and lie in CudaArenas.
class CudaExecutor final : public Executor {
 public:
  // Streams, events, cuBLASLt and pinned memory for these programs. An op that has no CUDA kernel is an error that names it.
  static Result<std::unique_ptr<CudaExecutor>> create(std::span<const Program* const> programs, int num_threads = 0,
                                                      ProductAlgorithms algorithms = ProductAlgorithms::kFixed);
  ~CudaExecutor() override;

  // launch and wait. Device errors are kDevice: with the op's name in the first run, with the program's later. While profiling, every run
  // launches its steps one by one; its errors have the program's name.
  Status run(const Executable& executable) override;
  Status run_step(const Executable& executable, size_t index) override;
  // By events around the replays.
  Result<double> time(const Executable& executable, int count) override;
  [[nodiscard]] AlgorithmChoices algorithms() const override;
  void set_algorithms(const AlgorithmChoices& chosen) override;
  // Enqueues one run without waiting for its end (the first one waits).
  Status launch(const Executable& executable);
  // Returns when everything enqueued is done, with the first error since the last wait: wrong values that kernels found in the data, too.
  Status wait();

  // Through pinned memory. write waits only when that is full.
  Status write(const TensorView& to, std::span<const std::byte> from) override;
  Status clear(const TensorView& view) override;
  Status read(const TensorView& from, std::span<std::byte> to) override;

  [[nodiscard]] void* stream() const;  // the compute stream (cudaStream_t)

 private:
  class Machine;
  CudaExecutor(std::unique_ptr<Machine> machine, int num_threads);
  std::unique_ptr<Machine> machine_;
};

}  // namespace glim
