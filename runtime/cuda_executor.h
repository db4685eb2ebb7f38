#pragma once
#include <memory>
#include <span>

#include "runtime/executable.h"

namespace glim {

// Runs programs on the current CUDA device. The first run of an executable launches its steps one by one (that loads the kernels and
// chooses the matrix products) and then captures them into a CUDA graph; every later run replays the graph, which allocates nothing.
// Executables must outlive the executor, and lie in CudaArenas.
class CudaExecutor final : public Executor {
 public:
  // Streams, events, cuBLASLt and pinned memory for these programs. An op that has no CUDA kernel is an error that names it.
  static Result<std::unique_ptr<CudaExecutor>> create(std::span<const Program* const> programs);
  ~CudaExecutor() override;

  // launch and wait. Device errors are kDevice: with the op's name in the first run, with the program's later.
  Status run(const Executable& executable) override;
  // Enqueues one run without waiting for its end (the first one waits).
  Status launch(const Executable& executable);
  // Returns when everything enqueued is done, with the first error since the last wait.
  Status wait();

  // Copies through pinned memory, after everything enqueued. The host side is contiguous and holds exactly the tensor; they return when
  // done.
  Status write(const TensorView& to, std::span<const std::byte> from);
  Status read(const TensorView& from, std::span<std::byte> to);

  [[nodiscard]] void* stream() const;  // the compute stream (cudaStream_t)

 private:
  class Machine;
  explicit CudaExecutor(std::unique_ptr<Machine> machine);
  std::unique_ptr<Machine> machine_;
};

}  // namespace glim
