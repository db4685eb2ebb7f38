#include "runtime/cudnn/attention.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <set>
#include <string_view>

#include "runtime/cuda_error.h"
#include "runtime/cudnn/library.h"

namespace glim {
namespace {

struct Notes {
  std::mutex mutex;
  std::set<std::string> said;
  std::vector<std::string> waiting;
};
Notes& notes() {
  static Notes all;
  return all;
}
void note(std::string text) {
  Notes& all = notes();
  const std::scoped_lock lock(all.mutex);
  if (all.said.insert(text).second) all.waiting.push_back(std::move(text));
}

size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

// q, k, v, out, lse and, backward, ct, ct_q, ct_k, ct_v.
std::vector<TensorView> tensors_of(CudnnPass pass, const KernelArgs& k) {
  if (pass == CudnnPass::kForward) return {k.in[0], k.in[1], k.in[2], k.out[0], k.out[1]};
  return {k.in[0], k.in[1], k.in[2], k.in[4], k.in[5], k.in[6], k.out[0], k.out[1], k.out[2]};
}

bool is_aligned(const TensorView& view) {
  if (view.type.dtype != DType::kBF16) return true;  // lse
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.row_stride % 8 == 0;
}

}  // namespace

Result<AttentionChoice> attention_choice() {
  const char* const text = std::getenv("GLIM_ATTENTION");
  const std::string_view choice = text != nullptr ? text : "";
  if (choice.empty() || choice == "own") return AttentionChoice::kOwn;
  if (choice == "cudnn") return AttentionChoice::kCudnn;
  return invalid_argument(fmt::format("the environment variable GLIM_ATTENTION is own or cudnn, not '{}'", choice));
}

std::string attention_library_name() {
  const Result<AttentionChoice> choice = attention_choice();
  if (!choice || *choice == AttentionChoice::kOwn || !CudnnGraph::is_built()) return "own kernels";
  const Result<CudnnLibrary>& library = the_cudnn();
  if (!library) return fmt::format("own kernels: {}", library.error().message);
  return fmt::format("cuDNN {} ({}) where it serves", cudnn_version_text(library->version), library->path);
}

std::vector<std::string> take_attention_notes() {
  Notes& all = notes();
  const std::scoped_lock lock(all.mutex);
  return std::exchange(all.waiting, {});
}

CudnnAttention::~CudnnAttention() {
  for (std::byte* const block : blocks_) cudaFree(block);
}

Result<std::byte*> CudnnAttention::memory_of(size_t bytes) {
  if (bytes > block_bytes_) {
    void* block = nullptr;
    if (Status status = cuda_status(cudaMalloc(&block, bytes), fmt::format("its workspace of {} bytes", bytes)); !status) {
      cudaGetLastError();  // no error of the step: the own kernel runs it
      return std::move(status.error());
    }
    blocks_.push_back(static_cast<std::byte*>(block));
    block_bytes_ = bytes;
  }
  return blocks_.back();
}

Status CudnnAttention::prepare(const CudnnProblem& problem, Plan& plan) {
  GLIM_ASSIGN(std::unique_ptr<CudnnGraph> graph, CudnnGraph::create(problem));
  const auto table = static_cast<size_t>((problem.num_segments + 1) * std::ssize(problem.row_strides) + problem.num_segments);
  GLIM_ASSIGN(plan.memory, memory_of(rounded(graph->workspace_bytes()) + table * sizeof(int32_t)));
  plan.graph = std::move(graph);
  return ok();
}

bool CudnnAttention::run(CudnnPass pass, const KernelArgs& k) {
  const auto attrs = k.attrs<ops::AttentionAttrs>();
  const std::vector<TensorView> tensors = tensors_of(pass, k);
  const int64_t rows = k.in[0].type.shape[0], head_size = k.in[0].type.shape[1] / attrs.num_heads;
  const int64_t num_segments = k.in[3].type.shape[0] - 1;
  if (choice_ == AttentionChoice::kOwn || k.in[0].type.dtype != DType::kBF16 || num_segments < 1 || !(attrs.scale > 0)) return false;
  if (const Result<CudnnLibrary>& library = the_cudnn(); !CudnnGraph::is_built() || !library) {
    note(fmt::format("the own kernels of attention serve: {}",
                     CudnnGraph::is_built() ? library.error().message
                                            : "this program was built without cuDNN's headers (GLIM_CUDNN in cmake/options.cmake)"));
    return false;
  }
  CudnnProblem problem{pass,
                       rows,
                       num_segments,
                       head_size,
                       attrs.num_heads,
                       attrs.num_kv_heads,
                       attrs.window < rows ? attrs.window : 0,
                       attrs.causal != 0,
                       attrs.scale,
                       {}};
  for (const TensorView& tensor : tensors) {
    if (!is_aligned(tensor) || tensor.row_stride * rows > std::numeric_limits<int32_t>::max()) return false;
    problem.row_strides.push_back(static_cast<int32_t>(tensor.row_stride));
  }
  const auto [entry, is_new] = plans_.try_emplace(problem);
  Plan& plan = entry->second;
  const auto refuse = [&](const Error& error) {
    plan.graph.reset();
    note(fmt::format(
        "cuDNN does not serve the {} pass of attention with T {}, {} segments, {}/{} heads of {}, window {}: {}. The own kernel does.",
        pass == CudnnPass::kForward ? "forward" : "backward", rows, num_segments, attrs.num_heads, attrs.num_kv_heads, head_size,
        attrs.window, error.message));
    return false;
  };
  if (is_new) {
    if (const Status prepared = prepare(problem, plan); !prepared) return refuse(prepared.error());
  }
  if (plan.graph == nullptr) return false;

  auto* const lengths = reinterpret_cast<int32_t*>(plan.memory + rounded(plan.graph->workspace_bytes()));
  cuda::SegmentTable table{
      k.in[3].as<int32_t>(), static_cast<int>(num_segments), static_cast<int>(rows), static_cast<int>(tensors.size()), {}, lengths,
      lengths + num_segments};
  std::copy(problem.row_strides.begin(), problem.row_strides.end(), table.row_strides);
  cuda::ClearedRows cleared{static_cast<int>(k.out.size()), {}};
  for (size_t i = 0; i < k.out.size(); ++i) {
    const int64_t units = static_cast<int64_t>(size_of(k.out[i].type.dtype) / sizeof(uint16_t));
    cleared.tensors[i] = {k.out[i].as<uint16_t>(), k.out[i].row_stride * units, k.out[i].type.shape[1] * units};
  }
  cuda::describe_segments(table, cleared, k.context.stream());
  std::vector<void*> pointers;
  for (const TensorView& tensor : tensors) pointers.push_back(tensor.data);
  if (const Status ran = plan.graph->run(pointers, table.lengths, table.offsets, plan.memory, k.context.stream()); !ran)
    return refuse(ran.error());
  ++num_served_;
  return true;
}

}  // namespace glim
