#pragma once
// What a kernel gets: its operands, its attributes, its workspace, and what belongs to the machine (through KernelContext,
// which runtime/ implements). A kernel never allocates, never writes outside its outputs and workspace, and gives the same
// bits for the same inputs whatever the number of threads.
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
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
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>) FunctionRef(F&& f)  // NOLINT(google-explicit-constructor)
      : object_(const_cast<void*>(static_cast<const void*>(&f))), call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(static_cast<Args>(args)...);
        }) {}
  R operator()(Args... args) const { return call_(object_, static_cast<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

// A row-major matrix on the device, or its transpose: element (i, j) is data[i * row_stride + j], or data[j * row_stride + i].
struct DeviceMatrix {
  const void* data = nullptr;
  int64_t row_stride = 0;  // elements
  bool transposed = false;
};
// c [rows, columns] = alpha * a [rows, depth] * b [depth, columns] + beta * c. With beta = 0, c is not read. Sums are taken, and alpha
// and beta are used, in the accumulation type of `dtype`. c [rows, columns] is row-major and overlaps neither a nor b.
struct DeviceProduct {
  int64_t rows = 0, columns = 0, depth = 0;
  double alpha = 1, beta = 0;
  DType dtype = DType::kF32;  // of a and b: f64, f32 or bf16
  DeviceMatrix a, b;
  void* c = nullptr;
  DType c_dtype = DType::kF32;  // `dtype`, or f32 for bf16 operands
  int64_t c_row_stride = 0;     // elements
};

// The first two members serve CPU kernels and the others device kernels; an executor implements its half.
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
  // What `fail` is to a device kernel: a word of device memory for the step that is being launched, which holds all ones until the kernel
  // puts there, with atomicMin, position << 32 | value. The program's run then ends with "`what` VALUE at position P is outside
  // [0, limit)`except`". Both texts must live as long as the program. Null where nobody looks.
  [[nodiscard]] virtual uint64_t* data_fault(std::string_view /*what*/, int64_t /*limit*/, std::string_view /*except*/ = {}) {
    return nullptr;
  }
  // Enqueues what `body` enqueues (on the compute stream), to run only if *count > threshold when its turn comes. It may also run where
  // that does not hold: then it must change nothing.
  virtual void when_more(const int64_t* /*count*/, int64_t /*threshold*/, FunctionRef<void()> body) { body(); }
  // Enqueues a matrix product on stream(). Same operands, same bits. What goes wrong is an error at the end of the step.
  virtual void product(const DeviceProduct&) { report_bug(__FILE__, __LINE__, "product", "this executor has no device to multiply on"); }
};

struct KernelArgs {
  std::span<const TensorView> in;  // by operand position; not present() where absent
  std::span<const TensorView> out;
  std::span<const uint32_t> attr_words;
  std::span<std::byte> workspace;  // at least Cost::workspace_bytes, 256-byte aligned, contents undefined
  KernelContext& context;
  const void* user_data = nullptr;  // OpDef::user_data
  template <class Attrs>
  [[nodiscard]] Attrs attrs() const {
    return from_words<Attrs>(attr_words);
  }
};

}  // namespace glim
