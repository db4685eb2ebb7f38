#pragma once
// A program bound to memory: for every step its kernel and views, so that running it is a loop without look-ups or allocation.
#include <atomic>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/memory_plan.h"
#include "engine/schedule.h"
#include "ops/kernel_context.h"
#include "runtime/arenas.h"
#include "runtime/thread_pool.h"

namespace glim {

// What the compiler made of one program; independent of any machine.
struct Program {
  std::string name;
  Graph graph;
  Schedule schedule;
  MemoryPlan plan;
};

struct BoundStep {
  enum class Kind : uint8_t {
    kKernel,
    kCopy,    // before the kernel of `node`; without a node: after all other steps, on every stream
    kEvents,  // nothing to run (a view, say), but events to wait for or to signal
  };
  Kind kind = Kind::kKernel;
  NodeId node;
  const OpDef* def = nullptr;  // kKernel
  uint32_t first_view = 0;     // in Executable::views: inputs, then outputs (kCopy: from, to)
  uint16_t num_inputs = 0, num_outputs = 0;
  std::span<const uint32_t> attr_words{};
  Stream stream = Stream::kCompute;
  std::span<const uint32_t> waits{};  // events that the stream waits for before this step
  uint32_t signal = ~0U;              // event that fires when the step is done; ~0 = none
};

class Executable {
 public:
  // `program` and what owns the arenas must outlive this. Nothing is read or written through `arenas`: they may lie on a device.
  Executable(const Program& program, const ArenaBases& arenas);

  [[nodiscard]] const Program& program() const { return *program_; }
  [[nodiscard]] std::span<const BoundStep> steps() const { return steps_; }
  [[nodiscard]] std::span<const TensorView> inputs(const BoundStep& step) const {
    return {views_.data() + step.first_view, step.num_inputs};
  }
  [[nodiscard]] std::span<const TensorView> outputs(const BoundStep& step) const {
    return {views_.data() + step.first_view + step.num_inputs, step.num_outputs};
  }
  [[nodiscard]] std::span<std::byte> workspace() const { return workspace_; }
  // "linear at decoder.3 (model.toml:40:5)"; what it copies or waits for where the step has no op.
  [[nodiscard]] std::string describe(const BoundStep& step) const;
  // Where a value lies. Only leaves, outputs and next values still hold it after a run.
  [[nodiscard]] TensorView view(ValueId v) const;

 private:
  const Program* program_;
  ArenaBases arenas_;
  std::vector<BoundStep> steps_;
  std::vector<TensorView> views_;
  std::span<std::byte> workspace_;
};

// How algorithms are chosen where the library that multiplies matrices has several. The choice decides last bits and speed.
enum class ProductAlgorithms : uint8_t {
  kFixed,  // the first that the library proposes and that gives the same bits every time: nothing is timed
  kTimed,  // the fastest of those that it proposes: known from earlier runs on such a machine, otherwise timed when first met
};
// A product's shape -> its algorithm. Text that only the executor that made it reads.
using AlgorithmChoices = std::map<std::string, std::string>;

// When a step ran.
struct StepTime {
  double start = 0, seconds = 0;  // since the run began; how long
};

// Runs programs on one backend, and moves tensors between the host and the memory that they run in.
class Executor {
 public:
  explicit Executor(int num_threads) : pool_(num_threads) {}
  virtual ~Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Runs every step once. The error is the first wrong value that a kernel found in the data (kInvalidArgument), or the first failure
  // of the device (kDevice), with the op's name and origin.
  virtual Status run(const Executable& executable) = 0;
  // Runs one step alone, for checks that look between the steps.
  virtual Status run_step(const Executable& executable, size_t index) = 0;

  // Copy after everything that was run. The host side is contiguous and holds exactly the tensor. `from` may be changed as soon as write
  // returns; `to` is complete when read returns.
  virtual Status write(const TensorView& to, std::span<const std::byte> from) = 0;
  virtual Status read(const TensorView& from, std::span<std::byte> to) = 0;
  // Sets all bits to 0, after everything that was run.
  virtual Status clear(const TensorView& view) = 0;

  // Runs it `count` times, one right after the other, and says how many seconds the machine took.
  virtual Result<double> time(const Executable& executable, int count) = 0;

  // While profiling is on, a run leaves here when each step of its executable ran, one entry per step. Null: off.
  void set_profile(std::vector<StepTime>* times) { profile_ = times; }
  // The algorithms that products have run with, where they are chosen by timing. Empty otherwise, and on the CPU.
  [[nodiscard]] virtual AlgorithmChoices algorithms() const { return {}; }
  // Algorithms for products that have not run yet, in place of timing. One that this machine does not offer is passed over.
  virtual void set_algorithms(const AlgorithmChoices& /*chosen*/) {}
  // While the flag is set, run() ends with kCancelled: before its next step where steps are launched one by one (the CPU), before a program
  // that is launched as a whole (a device). Null: never. It may be set by any thread.
  void set_cancellation(const std::atomic<bool>* flag) { cancellation_ = flag; }
  // Host threads.
  [[nodiscard]] ThreadPool& pool() { return pool_; }

 protected:
  [[nodiscard]] Status check_not_cancelled(const Executable& executable) const;

  ThreadPool pool_;
  std::vector<StepTime>* profile_ = nullptr;
  const std::atomic<bool>* cancellation_ = nullptr;
};

}  // namespace glim
