#pragma once
// A compiled model with memory: set inputs, run programs, read outputs and state.
#include <atomic>
#include <cstdint>
#include <string>

#include "runtime/backend.h"
#include "runtime/compile.h"

namespace glim {

// A tensor on the host, contiguous.
struct HostTensor {
  TensorType type;
  std::vector<std::byte> bytes;
  // Element i as a double (floats and integers alike).
  [[nodiscard]] double at(int64_t i) const;
  void set(int64_t i, double value);  // rounded to nearest even
};

class Model {
 public:
  // Allocates every arena on the backend. Parameters are zero until initialise() or set_state().
  static Result<Model> create(CompiledModel compiled, int num_threads = 0, Backend backend = Backend::kCpu,
                              ProductAlgorithms algorithms = ProductAlgorithms::kFixed);

  [[nodiscard]] const CompiledModel& compiled() const { return *compiled_; }
  [[nodiscard]] Executor& executor() { return *machine_.executor; }
  [[nodiscard]] const Executable* executable(ProgramKind kind) const;  // nullptr: the model was compiled without it

  // Draws parameters as the model file says: a pure function of (seed, parameter name), whatever the number of threads and the backend.
  // Also sets master weights to the parameters, and moments and step count to zero.
  Status initialise(uint64_t seed);
  // Call after parameters were set from outside: master weights follow them, moments and step count start at zero.
  Status reset_optimizer();

  // An i32 input. Checks count, range and order as the model file says; the error names the input and the first bad position.
  Status set_input(std::string_view name, std::span<const int32_t> values);
  // A float input of one element (learning_rate, denominator).
  Status set_scalar(std::string_view name, double value);
  // Computes the derived inputs from what was given, and sets all of them.
  Status set_inputs(std::map<std::string, std::vector<int32_t>, std::less<>> values);

  // kCancelled when the flag given to set_cancellation is set: before kUpdate starts, and at any step of the other programs.
  Status run(ProgramKind kind);
  // `flag` may be set by any thread, and must outlive this.
  void set_cancellation(const std::atomic<bool>* flag) { cancellation_ = flag; }
  // Reads an output of the program, or a state of the model. Outputs are valid until another program runs.
  [[nodiscard]] Result<HostTensor> output(ProgramKind kind, std::string_view name) const;
  [[nodiscard]] Result<double> scalar(ProgramKind kind, std::string_view name) const;  // an output of one element
  [[nodiscard]] Result<HostTensor> state(std::string_view name) const;
  // Copies a state into `to`, which must have its size.
  Status read_state(std::string_view name, std::span<std::byte> to) const;
  Status set_state(std::string_view name, std::span<const std::byte> bytes);
  [[nodiscard]] bool has_state(std::string_view name) const;  // false, say, for a parameter that no program reads

 private:
  Model() = default;
  [[nodiscard]] TensorView view_of(const LeafSlot& slot) const;
  std::unique_ptr<CompiledModel> compiled_;
  Machine machine_;
  std::vector<Executable> executables_;
  const std::atomic<bool>* cancellation_ = nullptr;
};

}  // namespace glim
