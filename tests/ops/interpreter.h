#pragma once
// Runs kernels and graphs for tests, without the runtime: every value has a buffer of its own, nothing is planned.
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph.h"
#include "ops/kernel_context.h"

namespace glim::testing {

// An owned tensor. With a margin (rank 2 only) its rows are that many elements longer than they look.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(const TensorType& type, int64_t margin = 0);  // poisoned
  Tensor(const TensorType& type, const std::vector<double>& values);

  [[nodiscard]] const TensorType& type() const { return type_; }
  [[nodiscard]] int64_t numel() const { return type_.shape.numel(); }
  [[nodiscard]] TensorView view() { return {bytes_.data(), type_, stride_}; }
  // Element i in row-major order; conversions round to nearest even.
  [[nodiscard]] double get(int64_t i) const;
  void set(int64_t i, double value);
  [[nodiscard]] std::vector<double> values() const;
  // The bytes of the elements, without margins.
  [[nodiscard]] std::vector<std::byte> bits() const;
  // Sets every element, margins too, to NaN or (integers) a pattern that no kernel writes.
  void poison();
  [[nodiscard]] bool margin_is_poisoned() const;
  [[nodiscard]] int64_t num_poisoned() const;  // elements; any NaN counts
  [[nodiscard]] Tensor with_margin(int64_t margin) const;
  [[nodiscard]] Tensor with_dtype(DType dtype) const;

 private:
  [[nodiscard]] size_t offset(int64_t i) const;
  TensorType type_;
  int64_t stride_ = 0;
  std::vector<std::byte> bytes_;
};

// Tasks run one after another (1 thread), or on that many threads, the last task first.
class TestContext final : public KernelContext {
 public:
  explicit TestContext(int num_threads) : num_threads_(num_threads) {}
  void parallel_for(int64_t num_tasks, FunctionRef<void(int64_t)> task) override;
  void fail(std::string message) override;
  [[nodiscard]] const std::string& error() const { return error_; }  // "" if none

 private:
  int num_threads_;
  std::mutex mutex_;
  std::string error_;
};

struct RunOptions {
  int num_threads = 1;
  bool margins = false;   // rank-2 operands and outputs lie in wider buffers
  bool in_place = false;  // outputs that may overwrite an operand do
};
struct KernelRun {
  std::vector<Tensor> out;
  std::string error;            // what the kernel reported
  bool operands_intact = true;  // those that no output lies on
  bool margins_intact = true;
};
// Infers the output types (an error is a bug of the test), and runs the CPU kernel with poisoned outputs and workspace.
// Null entries of `in` are absent operands.
KernelRun run_op(const OpDef& def, std::span<const uint32_t> attr_words, std::span<const Tensor* const> in, const RunOptions& options = {});

// Runs every node of a graph; leaves must all be given. One tensor per value.
std::vector<Tensor> evaluate(const Graph& graph, const std::vector<std::pair<ValueId, Tensor>>& leaves);

// ||a - b|| / ||b||, over all elements.
double relative_error(const std::vector<double>& a, const std::vector<double>& b);
double norm(const std::vector<double>& a);

}  // namespace glim::testing
