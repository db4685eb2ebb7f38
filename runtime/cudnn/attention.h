#pragma once
// Attention through cuDNN, where this build has its headers and the process finds a library that can be used.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/attention/attention_attrs.h"
#include "ops/attention/library.h"
#include "runtime/cudnn/graph.h"

namespace glim {

// The environment variable GLIM_ATTENTION: "own" (as without it) or "cudnn". Another value is an error.
enum class AttentionChoice : uint8_t { kOwn, kCudnn };
[[nodiscard]] Result<AttentionChoice> attention_choice();

// What serves attention on the GPU: "own kernels", or "cuDNN 9.19.0 (PATH) where it serves".
[[nodiscard]] std::string attention_library_name();
// What was to be served by cuDNN and is not, a line each, once per process.
[[nodiscard]] std::vector<std::string> take_attention_notes();

// One executor's plans, made when a shape is first met, and their workspace: before a step is captured, so that replays allocate nothing.
// Where a plan cannot be made, the shape is remembered as not served. All calls are on one stream.
class CudnnAttention final : public ops::AttentionLibrary {
 public:
  explicit CudnnAttention(AttentionChoice choice) : choice_(choice) {}
  ~CudnnAttention() override;
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  [[nodiscard]] bool is_forced() const override { return choice_ == AttentionChoice::kCudnn; }
  bool attention(const KernelArgs& k) override { return run(CudnnPass::kForward, k); }
  bool attention_vjp(const KernelArgs& k) override { return run(CudnnPass::kBackward, k); }
  [[nodiscard]] int num_served() const { return num_served_; }  // nodes, so far

 private:
  struct Plan {
    std::unique_ptr<CudnnGraph> graph;  // null: not served
    std::byte* memory = nullptr;        // cuDNN's workspace, then the segment table
  };
  bool run(CudnnPass pass, const KernelArgs& k);
  Status prepare(const CudnnProblem& problem, Plan& plan);
  Result<std::byte*> memory_of(size_t bytes);

  AttentionChoice choice_;
  std::map<CudnnProblem, Plan> plans_;
  std::vector<std::byte*> blocks_;  // captured steps know the older ones; the last is the largest
  size_t block_bytes_ = 0;
  int num_served_ = 0;
};

}  // namespace glim
