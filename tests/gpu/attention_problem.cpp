#include "tests/gpu/attention_problem.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "ops/bf16.h"
#include "ops/kernel_context.h"
#include "runtime/cudnn/attention.h"

namespace glim::testing {
namespace {

#define GLIM_EXPECT_CUDA(expression)                                        \
  do {                                                                      \
    const cudaError_t glim_result = (expression);                           \
    EXPECT_EQ(glim_result, cudaSuccess) << cudaGetErrorString(glim_result); \
  } while (false)

template <class F>
void with_element(DType dtype, F&& f) {
  if (dtype == DType::kF64) return f(double{});
  if (dtype == DType::kF32) return f(float{});
  return f(Bf16{});
}
double rounded(double value, DType dtype) {
  with_element(dtype, [&](auto element) { value = static_cast<double>(static_cast<decltype(element)>(value)); });
  return value;
}

class CpuContext final : public KernelContext {
 public:
  void parallel_for(int64_t num_tasks, FunctionRef<void(int64_t)> task) override {
    const auto num_threads = static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < num_threads; ++t) {
      threads.emplace_back([&, t] {
        for (int64_t i = t; i < num_tasks; i += num_threads) task(i);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void fail(std::string message) override { ADD_FAILURE() << message; }
};

class StreamContext : public KernelContext {
 public:
  explicit StreamContext(cudaStream_t stream) : stream_(stream) {}
  void parallel_for(int64_t, FunctionRef<void(int64_t)>) override { ADD_FAILURE() << "a device kernel runs on no host thread"; }
  void fail(std::string message) override { ADD_FAILURE() << message; }
  [[nodiscard]] void* stream() const override { return stream_; }

 private:
  cudaStream_t stream_;
};

class LibraryContext final : public StreamContext, public ops::AttentionLibrary {
 public:
  using StreamContext::StreamContext;
  [[nodiscard]] bool is_forced() const override { return library_.is_forced(); }
  bool attention(const KernelArgs& k) override { return library_.attention(k); }
  bool attention_vjp(const KernelArgs& k) override { return library_.attention_vjp(k); }
  [[nodiscard]] int num_served() const { return library_.num_served(); }

 private:
  CudnnAttention library_{AttentionChoice::kCudnn};
};

// A matrix with wide rows on the device.
struct DeviceBuffer {
  std::byte* data = nullptr;
  size_t bytes = 0;
  explicit DeviceBuffer(size_t size, int byte = 0xff) : bytes(size) {
    GLIM_EXPECT_CUDA(cudaMalloc(reinterpret_cast<void**>(&data), std::max<size_t>(size, 256)));
    poison(byte);
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { cudaFree(data); }
  void poison(int byte) const { GLIM_EXPECT_CUDA(cudaMemset(data, byte, bytes)); }
  [[nodiscard]] TensorView view(const TensorType& type, int64_t stride, int64_t column = 0) const {
    return {data + static_cast<size_t>(column) * size_of(type.dtype), type, stride};
  }
};

void write(const TensorView& to, const Values& values) {
  const size_t rows = static_cast<size_t>(to.type.shape[0]), width = static_cast<size_t>(to.type.shape[1]), size = size_of(to.type.dtype);
  std::vector<std::byte> host(values.size() * size);
  with_element(to.type.dtype, [&](auto element) {
    for (size_t i = 0; i < values.size(); ++i) {
      element = static_cast<decltype(element)>(values[i]);
      std::memcpy(host.data() + i * size, &element, size);
    }
  });
  GLIM_EXPECT_CUDA(cudaMemcpy2D(to.data, static_cast<size_t>(to.row_stride) * size, host.data(), width * size, width * size, rows,
                                cudaMemcpyHostToDevice));
}
std::vector<std::byte> read(const TensorView& from) {
  const size_t rows = static_cast<size_t>(from.type.shape[0]), width = static_cast<size_t>(from.type.shape[1]) * size_of(from.type.dtype);
  std::vector<std::byte> host(rows * width);
  GLIM_EXPECT_CUDA(cudaMemcpy2D(host.data(), width, from.data, static_cast<size_t>(from.row_stride) * size_of(from.type.dtype), width, rows,
                                cudaMemcpyDeviceToHost));
  return host;
}
Values read_values(const TensorView& from) {
  const std::vector<std::byte> bytes = read(from);
  const size_t size = size_of(from.type.dtype);
  Values values(bytes.size() / size);
  with_element(from.type.dtype, [&](auto element) {
    for (size_t i = 0; i < values.size(); ++i) {
      std::memcpy(&element, bytes.data() + i * size, size);
      values[i] = static_cast<double>(element);
    }
  });
  return values;
}

}  // namespace

std::string AttentionProblem::name() const {
  return fmt::format("T {} d {} heads {}/{} causal {} window {} scale {} segments {}", rows, head_size, attrs.num_heads, attrs.num_kv_heads,
                     attrs.causal, attrs.window, attrs.scale,
                     fmt::join(segments.begin(), segments.begin() + std::min<ptrdiff_t>(8, std::ssize(segments)), " "));
}

double AttentionProblem::num_pairs() const {
  double pairs = 0;
  for (size_t g = 0; g + 1 < segments.size(); ++g) {
    for (int64_t i = segments[g]; i < segments[g + 1]; ++i) {
      const int64_t w = attrs.window > 0 ? attrs.window : rows;
      const int64_t begin = std::max<int64_t>(segments[g], i - w + 1),
                    end = attrs.causal ? i + 1 : std::min<int64_t>(segments[g + 1], i + w);
      pairs += static_cast<double>(end - begin);
    }
  }
  return pairs;
}

AttentionInputs::AttentionInputs(const AttentionProblem& problem, DType dtype) {
  std::mt19937_64 random(3);
  Values some(1'000'003);  // used over and over: large problems need many
  for (double& value : some) {
    double sum = -2;
    for (int term = 0; term < 4; ++term) sum += static_cast<double>(random() >> 11) * 0x1p-53;
    value = rounded(1.7 * sum, dtype);
  }
  size_t next = 0;
  const auto fill = [&](Values& values, int64_t width) {
    values.resize(static_cast<size_t>(problem.rows * width));
    for (double& value : values) value = some[next++ % some.size()];
    for (int64_t row = 0; row < problem.rows; ++row) {
      if (row >= problem.segments.front() && row < problem.segments.back()) continue;
      std::fill_n(values.begin() + row * width, width, std::numeric_limits<double>::quiet_NaN());
    }
  };
  fill(q, problem.q_width());
  fill(k, problem.kv_width());
  fill(v, problem.kv_width());
  fill(ct, problem.q_width());
}

AttentionValues run_on_cpu(const AttentionProblem& problem, const AttentionInputs& inputs) {
  const int64_t rows = problem.rows;
  AttentionInputs in = inputs;  // a view is of memory that may be written
  AttentionValues a{Values(in.q.size()), Values(static_cast<size_t>(rows * problem.attrs.num_heads)), Values(in.q.size()),
                    Values(in.k.size()), Values(in.k.size())};
  std::vector<int32_t> segments = problem.segments;
  const auto view = [&](Values& values) {
    return contiguous_view(values.data(), {DType::kF64, {rows, static_cast<int64_t>(values.size()) / rows}});
  };
  const TensorView table = contiguous_view(segments.data(), {DType::kI32, {std::ssize(segments)}});
  const std::vector<uint32_t> words = to_words(problem.attrs);
  CpuContext context;
  const TensorView forward_in[] = {view(in.q), view(in.k), view(in.v), table}, forward_out[] = {view(a.out), view(a.lse)};
  ops::attention_cpu({forward_in, forward_out, words, {}, context});
  const TensorView backward_in[] = {view(in.q), view(in.k), view(in.v), table, view(a.out), view(a.lse), view(in.ct)},
                   backward_out[] = {view(a.ct_q), view(a.ct_k), view(a.ct_v)};
  ops::attention_vjp_cpu({backward_in, backward_out, words, {}, context});
  return a;
}

struct CudaAttention::Machine {
  Machine(const AttentionProblem& p, DType dtype, int margin, AttentionServer server)
      : words(to_words(p.attrs)),
        element(size_of(dtype)),
        sum_element(size_of(accumulation_dtype(dtype))),
        stride(p.q_width() + 2 * p.kv_width() + margin),
        packed(static_cast<size_t>(p.rows * stride) * element),
        ct(static_cast<size_t>(p.rows * (p.q_width() + margin)) * element),
        segments(p.segments.size() * 4),
        workspace_bytes(ops::cuda_vjp_workspace(p.rows, p.head_size, p.attrs, sum_element, dtype == DType::kBF16).bytes()),
        workspace(workspace_bytes) {
    GLIM_EXPECT_CUDA(cudaStreamCreate(&stream));
    if (server == AttentionServer::kLibrary)
      context = std::make_unique<LibraryContext>(stream);
    else
      context = std::make_unique<StreamContext>(stream);
    const TensorType q_type{dtype, {p.rows, p.q_width()}}, kv_type{dtype, {p.rows, p.kv_width()}},
        lse_type{accumulation_dtype(dtype), {p.rows, p.attrs.num_heads}};
    in = {packed.view(q_type, stride), packed.view(kv_type, stride, p.q_width()), packed.view(kv_type, stride, p.q_width() + p.kv_width()),
          segments.view({DType::kI32, {std::ssize(p.segments)}}, 1)};
    for (const TensorType& type : {q_type, lse_type, q_type, kv_type, kv_type}) {
      const int64_t out_stride = type.shape[1] + margin;
      buffers.push_back(std::make_unique<DeviceBuffer>(static_cast<size_t>(p.rows * out_stride) * size_of(type.dtype)));
      out.push_back(buffers.back()->view(type, out_stride));
    }
    for (const TensorView& each : {in[0], in[1], in[2], in[3], out[0], out[1], ct.view(q_type, p.q_width() + margin)})
      backward_in.push_back(each);
  }
  ~Machine() { cudaStreamDestroy(stream); }
  void forward() { cuda::attention({in, std::span(out).first(2), words, {}, *context}); }
  void backward() { cuda::attention_vjp({backward_in, std::span(out).subspan(2), words, {workspace.data, workspace_bytes}, *context}); }
  std::vector<uint32_t> words;
  size_t element, sum_element;
  int64_t stride;
  DeviceBuffer packed, ct, segments;
  size_t workspace_bytes;
  DeviceBuffer workspace;
  std::vector<TensorView> in, backward_in, out;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers;
  cudaStream_t stream = nullptr;
  std::unique_ptr<StreamContext> context;
};

CudaAttention::CudaAttention(const AttentionProblem& problem, DType dtype, const AttentionInputs& inputs, int margin,
                             AttentionServer server)
    : machine_(std::make_unique<Machine>(problem, dtype, margin, server)) {
  write(machine_->in[0], inputs.q);
  write(machine_->in[1], inputs.k);
  write(machine_->in[2], inputs.v);
  write(machine_->backward_in[6], inputs.ct);
  GLIM_EXPECT_CUDA(cudaMemcpy(machine_->segments.data, problem.segments.data(), problem.segments.size() * 4, cudaMemcpyHostToDevice));
  GLIM_EXPECT_CUDA(cudaDeviceSynchronize());
}
CudaAttention::~CudaAttention() = default;

void CudaAttention::run() {
  machine_->forward();
  GLIM_EXPECT_CUDA(cudaGetLastError());
  machine_->backward();
  GLIM_EXPECT_CUDA(cudaGetLastError());
  GLIM_EXPECT_CUDA(cudaStreamSynchronize(machine_->stream));
}

int CudaAttention::num_served() const {
  const auto* const library = dynamic_cast<const LibraryContext*>(machine_->context.get());
  return library != nullptr ? library->num_served() : 0;
}

void CudaAttention::replay() {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t instance = nullptr;
  GLIM_EXPECT_CUDA(cudaStreamBeginCapture(machine_->stream, cudaStreamCaptureModeThreadLocal));
  machine_->forward();
  machine_->backward();
  GLIM_EXPECT_CUDA(cudaStreamEndCapture(machine_->stream, &graph));
  GLIM_EXPECT_CUDA(cudaGraphInstantiate(&instance, graph, 0));
  GLIM_EXPECT_CUDA(cudaGraphLaunch(instance, machine_->stream));
  GLIM_EXPECT_CUDA(cudaStreamSynchronize(machine_->stream));
  GLIM_EXPECT_CUDA(cudaGraphExecDestroy(instance));
  GLIM_EXPECT_CUDA(cudaGraphDestroy(graph));
}

void CudaAttention::set_segments(const std::vector<int32_t>& segments) {
  GLIM_EXPECT_CUDA(cudaMemcpy(machine_->segments.data, segments.data(), machine_->segments.bytes, cudaMemcpyHostToDevice));
}

void CudaAttention::poison_outputs(int byte) {
  for (const auto& buffer : machine_->buffers) buffer->poison(byte);
  machine_->workspace.poison(byte);
  GLIM_EXPECT_CUDA(cudaDeviceSynchronize());
}

std::pair<double, double> CudaAttention::times(int repetitions) {
  cudaEvent_t events[3];
  for (cudaEvent_t& event : events) GLIM_EXPECT_CUDA(cudaEventCreate(&event));
  Values forward, backward;
  const auto start = std::chrono::steady_clock::now();
  for (int k = 0; k < repetitions;) {
    GLIM_EXPECT_CUDA(cudaEventRecord(events[0], machine_->stream));
    machine_->forward();
    GLIM_EXPECT_CUDA(cudaEventRecord(events[1], machine_->stream));
    machine_->backward();
    GLIM_EXPECT_CUDA(cudaEventRecord(events[2], machine_->stream));
    GLIM_EXPECT_CUDA(cudaEventSynchronize(events[2]));
    float milliseconds[2] = {};
    for (int i = 0; i < 2; ++i) GLIM_EXPECT_CUDA(cudaEventElapsedTime(&milliseconds[i], events[i], events[i + 1]));
    if (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(500)) continue;  // until the clocks are those under load
    ++k;
    forward.push_back(milliseconds[0]);
    backward.push_back(milliseconds[1]);
  }
  for (const cudaEvent_t event : events) cudaEventDestroy(event);
  const auto median = [](Values& values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  return {median(forward), median(backward)};
}

AttentionValues CudaAttention::values() const {
  const auto& out = machine_->out;
  return {read_values(out[0]), read_values(out[1]), read_values(out[2]), read_values(out[3]), read_values(out[4])};
}

std::vector<std::vector<std::byte>> CudaAttention::bits() const {
  std::vector<std::vector<std::byte>> bits;
  for (const TensorView& each : machine_->out) bits.push_back(read(each));
  return bits;
}

bool CudaAttention::margins_intact() const {
  for (const TensorView& each : machine_->out) {
    TensorView margin = each;
    const size_t size = size_of(each.type.dtype);
    margin.data = each.as<std::byte>() + static_cast<size_t>(each.type.shape[1]) * size;
    margin.type.shape = {each.type.shape[0], each.row_stride - each.type.shape[1]};
    for (const std::byte byte : read(margin)) {
      if (byte != std::byte{0xff}) return false;
    }
  }
  return true;
}

}  // namespace glim::testing
