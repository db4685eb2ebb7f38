#include "runtime/cudnn/graph.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <exception>
#include <unordered_map>

#include "runtime/cudnn/library.h"

#ifdef GLIM_HAS_CUDNN
#include <cudnn_frontend.h>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // what the frontend looks cuDNN's functions up in
}

namespace glim {
namespace {

namespace graph = cudnn_frontend::graph;
using Tensor = std::shared_ptr<graph::Tensor_attributes>;

Status status_of(cudnn_frontend::error_t error) {
  if (error.is_good()) return ok();
  return Error{ErrorCode::kDevice, error.get_message()};
}

// The frontend throws where a function is missing.
template <class F>
auto without_exceptions(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception& exception) {
    return Error{ErrorCode::kDevice, exception.what()};
  }
}

// A handle per plan: plans are few, and each keeps its stream to itself.
Result<cudnnHandle_t> open_handle() {
  const Result<CudnnLibrary>& library = the_cudnn();
  if (!library) return library.error();
  cudnn_frontend::cudnn_dlhandle = library->handle;
  // The frontend would take libcudart.so.12 where it finds one; this process runs on another.
  setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", fmt::format("libcudart.so.{}", CUDART_VERSION / 1000).c_str(), 0);
  cudnnHandle_t handle = nullptr;
  if (cudnn_frontend::detail::create_handle(&handle) != CUDNN_STATUS_SUCCESS)
    return Error{ErrorCode::kDevice, fmt::format("cuDNN {} does not start", cudnn_version_text(library->version))};
  return handle;
}

enum Uid : int64_t { kLengths = 100, kOffsets = 200 };  // tensors have their position

class Builder {
 public:
  Builder(const CudnnProblem& problem, graph::Graph& to) : problem_(problem), graph_(to) {
    lengths_ = graph_.tensor(describe(graph::Tensor_attributes(), kLengths, problem.num_segments));
  }

  // A tensor's segments lie one after another: [segments, heads, rows, columns], where a segment starts at its offset.
  void describe_tensor(graph::Tensor_attributes& tensor, size_t position, int64_t heads, int64_t columns) {
    const int64_t stride = problem_.row_strides[position];
    const Tensor offsets =
        graph_.tensor(describe(graph::Tensor_attributes(), kOffsets + static_cast<int64_t>(position), problem_.num_segments + 1));
    tensor.set_uid(static_cast<int64_t>(position))
        .set_dim({problem_.num_segments, heads, problem_.rows, columns})
        .set_stride({problem_.rows * stride, columns, stride, 1})
        .set_ragged_offset(offsets);
    tensor.set_data_type(columns == 1 ? cudnn_frontend::DataType_t::FLOAT : cudnn_frontend::DataType_t::BFLOAT16);
  }
  Tensor input(size_t position, int64_t heads, int64_t columns) {
    graph::Tensor_attributes tensor;
    describe_tensor(tensor, position, heads, columns);
    return graph_.tensor(tensor);
  }
  void output(const Tensor& tensor, size_t position, int64_t heads, int64_t columns) {
    describe_tensor(*tensor, position, heads, columns);
    tensor->set_output(true);
  }
  template <class Attributes>
  void set_common(Attributes& attributes) const {
    attributes.set_attn_scale(static_cast<float>(problem_.scale)).set_padding_mask(true).set_seq_len_q(lengths_).set_seq_len_kv(lengths_);
    attributes.set_diagonal_alignment(cudnn_frontend::DiagonalAlignment_t::TOP_LEFT);
    const auto window = static_cast<int>(problem_.window);
    if (window > 0) attributes.set_diagonal_band_left_bound(window);
    if (problem_.causal)
      attributes.set_diagonal_band_right_bound(0);
    else if (window > 0)
      attributes.set_diagonal_band_right_bound(window - 1);
  }

  void forward() {
    const auto [heads, kv_heads, d] = sizes();
    const Tensor q = input(0, heads, d), k = input(1, kv_heads, d), v = input(2, kv_heads, d);
    graph::SDPA_attributes attributes;
    set_common(attributes);
    attributes.set_generate_stats(true);
    const auto [out, lse] = graph_.sdpa(q, k, v, attributes);
    output(out, 3, heads, d);
    output(lse, 4, heads, 1);
  }
  void backward() {
    const auto [heads, kv_heads, d] = sizes();
    const Tensor q = input(0, heads, d), k = input(1, kv_heads, d), v = input(2, kv_heads, d), out = input(3, heads, d),
                 lse = input(4, heads, 1), ct = input(5, heads, d);
    graph::SDPA_backward_attributes attributes;
    set_common(attributes);
    attributes.set_deterministic_algorithm(true).set_max_total_seq_len_q(problem_.rows).set_max_total_seq_len_kv(problem_.rows);
    const auto [ct_q, ct_k, ct_v] = graph_.sdpa_backward(q, k, v, out, ct, lse, attributes);
    output(ct_q, 6, heads, d);
    output(ct_k, 7, kv_heads, d);
    output(ct_v, 8, kv_heads, d);
  }

 private:
  static graph::Tensor_attributes describe(graph::Tensor_attributes tensor, int64_t uid, int64_t length) {
    tensor.set_uid(uid).set_dim({length, 1, 1, 1}).set_stride({1, 1, 1, 1}).set_data_type(cudnn_frontend::DataType_t::INT32);
    return tensor;
  }
  [[nodiscard]] std::array<int64_t, 3> sizes() const { return {problem_.num_heads, problem_.num_kv_heads, problem_.head_size}; }

  const CudnnProblem& problem_;
  graph::Graph& graph_;
  Tensor lengths_;
};

}  // namespace

struct CudnnGraph::Parts {
  ~Parts() {
    if (handle != nullptr) cudnn_frontend::detail::destroy_handle(handle);
  }
  Status build(const CudnnProblem& problem) {
    using Type = cudnn_frontend::DataType_t;
    num_segments = problem.num_segments;
    GLIM_ASSIGN(handle, open_handle());
    plan.set_io_data_type(Type::BFLOAT16).set_intermediate_data_type(Type::FLOAT).set_compute_data_type(Type::FLOAT);
    Builder builder(problem, plan);
    if (problem.pass == CudnnPass::kForward)
      builder.forward();
    else
      builder.backward();
    GLIM_TRY(status_of(plan.validate()));
    GLIM_TRY(status_of(plan.build_operation_graph(handle)));
    GLIM_TRY(status_of(plan.create_execution_plans({cudnn_frontend::HeurMode_t::A})));
    plan.deselect_numeric_notes({cudnn_frontend::NumericalNote_t::NONDETERMINISTIC});
    GLIM_TRY(status_of(plan.check_support()));
    GLIM_TRY(status_of(plan.build_plans(cudnn_frontend::BuildPlanPolicy_t::HEURISTICS_CHOICE)));
    return status_of(plan.get_workspace_size(workspace_bytes));
  }

  graph::Graph plan;
  cudnnHandle_t handle = nullptr;
  int64_t workspace_bytes = 0, num_segments = 0;
};

CudnnGraph::CudnnGraph(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
CudnnGraph::~CudnnGraph() = default;

bool CudnnGraph::is_built() { return true; }
Result<std::unique_ptr<CudnnGraph>> CudnnGraph::create(const CudnnProblem& problem) {
  auto parts = std::make_unique<Parts>();
  const Status built = without_exceptions([&]() -> Status { return parts->build(problem); });
  if (!built) return built.error();
  return std::unique_ptr<CudnnGraph>(new CudnnGraph(std::move(parts)));
}

size_t CudnnGraph::workspace_bytes() const { return static_cast<size_t>(parts_->workspace_bytes); }

Status CudnnGraph::run(std::span<void* const> tensors, int32_t* lengths, int32_t* offsets, void* workspace, void* stream) {
  return without_exceptions([&]() -> Status {
    if (cudnn_frontend::detail::set_stream(parts_->handle, static_cast<cudaStream_t>(stream)) != CUDNN_STATUS_SUCCESS)
      return Error{ErrorCode::kDevice, "cuDNN does not take the stream"};
    std::unordered_map<int64_t, void*> pointers{{kLengths, lengths}};
    for (size_t i = 0; i < tensors.size(); ++i) {
      pointers[static_cast<int64_t>(i)] = tensors[i];
      pointers[kOffsets + static_cast<int64_t>(i)] = offsets + static_cast<int64_t>(i) * (parts_->num_segments + 1);
    }
    return status_of(parts_->plan.execute(parts_->handle, pointers, workspace));
  });
}

}  // namespace glim
#else
namespace glim {

struct CudnnGraph::Parts {};
CudnnGraph::CudnnGraph(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
CudnnGraph::~CudnnGraph() = default;
bool CudnnGraph::is_built() { return false; }
Result<std::unique_ptr<CudnnGraph>> CudnnGraph::create(const CudnnProblem&) {
  return Error{ErrorCode::kDevice, "this program was built without cuDNN's headers"};
}
size_t CudnnGraph::workspace_bytes() const { return 0; }
Status CudnnGraph::run(std::span<void* const>, int32_t*, int32_t*, void*, void*) { return ok(); }

}  // namespace glim
#endif
