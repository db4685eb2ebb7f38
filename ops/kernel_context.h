#pragma once
// What a kernel gets: its operands, its attributes, its workspace, and what belongs to the machine (through KernelContext,
// which runtime/ implements). A kernel never allocates, never writes outside its outputs and workspace, and gives the same
// bits for the same inputs whatever the number of threads.
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>

#include "engine/attr.h"
#include "engine/op.h"
#include "engine/tensor_view.h"

namespace glim {

// A reference to a callable that outlives the call: no allocation.
template <class Signature>
class FunctionRef;
template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>)
  FunctionRef(F&& f)  // NOLINT(google-explicit-constructor)
      : object_(const_cast<void*>(static_cast<const void*>(&f))), call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(static_cast<Args>(args)...);
        }) {}
  R operator()(Args... args) const { return call_(object_, static_cast<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

class KernelContext {
 public:
  virtual ~KernelContext() = default;
  // Calls task(i) for every i in [0, num_tasks), on all cores, in any order; returns when all are done. How the work is cut
  // into tasks must not depend on the number of threads (that is what makes results repeatable).
  virtual void parallel_for(int64_t num_tasks, FunctionRef<void(int64_t)> task) = 0;
  // A value in the data is wrong (a label out of range, say). The step goes on and ends with this error; the first one wins.
  virtual void fail(std::string message) = 0;
  // The stream that a device kernel launches on (cudaStream_t); null on the CPU.
  [[nodiscard]] virtual void* stream() const { return nullptr; }
};

struct KernelArgs {
  std::span<const TensorView> in;   // by operand position; not present() where absent
  std::span<const TensorView> out;
  std::span<const uint32_t> attr_words;
  std::span<std::byte> workspace;   // at least Cost::workspace_bytes, 256-byte aligned, contents undefined
  KernelContext& context;
  template <class Attrs>
  [[nodiscard]] Attrs attrs() const {
    return from_words<Attrs>(attr_words);
  }
};

}  // namespace glim
