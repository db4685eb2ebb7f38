#pragma once
// One call of attention and one of attention_vjp, on the CPU in f64 and on the GPU in any dtype.
#include <memory>
#include <string>
#include <vector>

#include "ops/attention/attention.h"

namespace glim::testing {

using Values = std::vector<double>;

struct AttentionProblem {
  int64_t rows, head_size;
  ops::AttentionAttrs attrs;
  std::vector<int32_t> segments;
  [[nodiscard]] std::string name() const;
  [[nodiscard]] int64_t q_width() const { return attrs.num_heads * head_size; }
  [[nodiscard]] int64_t kv_width() const { return attrs.num_kv_heads * head_size; }
  // Pairs of a query and a key that it sees.
  [[nodiscard]] double num_pairs() const;
};

// Random values that `dtype` can hold; rows outside of all segments hold NaN.
struct AttentionInputs {
  Values q, k, v, ct;
  AttentionInputs(const AttentionProblem& problem, DType dtype);
};
struct AttentionValues {
  Values out, lse, ct_q, ct_k, ct_v;
};

AttentionValues run_on_cpu(const AttentionProblem& problem, const AttentionInputs& inputs);

enum class AttentionServer { kOwn, kLibrary };

// q, k and v are slices of one packed product, whose rows are `margin` elements longer; ct and the outputs have rows that much longer.
// Outputs and workspace are poisoned.
class CudaAttention {
 public:
  CudaAttention(const AttentionProblem& problem, DType dtype, const AttentionInputs& inputs, int margin,
                AttentionServer server = AttentionServer::kOwn);
  ~CudaAttention();
  void run();
  void replay();                                            // once more, as a captured graph
  void set_segments(const std::vector<int32_t>& segments);  // as many as before
  [[nodiscard]] int num_served() const;                     // passes that the library served
  void poison_outputs(int byte);
  // Median milliseconds of the forward and the backward pass.
  std::pair<double, double> times(int repetitions);
  [[nodiscard]] AttentionValues values() const;
  [[nodiscard]] std::vector<std::vector<std::byte>> bits() const;  // of out, lse, ct_q, ct_k, ct_v
  [[nodiscard]] bool margins_intact() const;

 private:
  struct Machine;
  std::unique_ptr<Machine> machine_;
};

}  // namespace glim::testing
