#include "runtime/cuda_executor.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "ops/device/copy_view.h"
#include "runtime/cuda_error.h"
#include "runtime/cuda_products.h"

namespace glim {
namespace {

constexpr size_t kPinnedBytes = size_t{8} << 20;

// A tensor as `rows` runs of `width` bytes, `pitch` apart.
struct Runs {
  size_t rows, width, pitch;
};
Runs runs_of(const TensorView& view) {
  if (view.contiguous()) return {1, view.type.bytes(), view.type.bytes()};
  const size_t element = size_of(view.type.dtype);
  return {static_cast<size_t>(view.type.shape[0]), static_cast<size_t>(view.type.shape[1]) * element,
          static_cast<size_t>(view.row_stride) * element};
}

}  // namespace

class CudaExecutor::Machine final : public KernelContext {
 public:
  ~Machine() override;
  Status open(std::span<const Program* const> programs);
  Status launch(const Executable& executable);
  Status wait(std::string_view what);
  template <class Copy>
  Status transfer(const TensorView& view, Copy&& copy);

  void parallel_for(int64_t, FunctionRef<void(int64_t)>) override {
    report_bug(__FILE__, __LINE__, "parallel_for", "a device kernel runs on no host thread");
  }
  void fail(std::string message) override { record(Error{ErrorCode::kInvalidArgument, std::move(message)}); }
  [[nodiscard]] void* stream() const override { return current_; }
  void product(const DeviceProduct& product) override {
    GLIM_CHECK(current_ == streams_[0], "matrix products share one workspace: they run on the compute stream");
    if (Status status = products_.run(product, current_); !status) record(std::move(status.error()));
  }

  std::byte* pinned = nullptr;

 private:
  void record(Error error) {
    if (!failed_) failure_ = std::move(error);
    failed_ = true;
  }
  void record(cudaError_t result, std::string_view what) {
    if (Status status = cuda_status(result, what); !status) record(std::move(status.error()));
  }
  enum class Into : uint8_t { kRun, kCapture };
  void issue(const Executable& executable, Into into);
  void join_communication();
  Status capture(const Executable& executable);

  cudaStream_t streams_[2] = {};  // by Stream
  cudaStream_t current_ = nullptr;
  cudaEvent_t begun_ = nullptr, communicated_ = nullptr;
  std::vector<cudaEvent_t> events_;  // of a schedule
  CudaProducts products_;
  std::map<const Executable*, cudaGraphExec_t> captured_;
  const Executable* last_ = nullptr;
  bool failed_ = false, communicates_ = false;
  Error failure_;
};

CudaExecutor::Machine::~Machine() {
  if (streams_[0] != nullptr) cudaStreamSynchronize(streams_[0]);
  for (const auto& [executable, graph] : captured_) cudaGraphExecDestroy(graph);
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  for (const cudaEvent_t event : {begun_, communicated_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  for (const cudaStream_t each : streams_) {
    if (each != nullptr) cudaStreamDestroy(each);
  }
  if (pinned != nullptr) cudaFreeHost(pinned);
}

Status CudaExecutor::Machine::open(std::span<const Program* const> programs) {
  uint32_t num_events = 0;
  for (const Program* program : programs) {
    num_events = std::max(num_events, program->schedule.num_events);
    for (const ScheduleStep& step : program->schedule.steps) {
      const OpDef& def = program->graph.def(step.node);
      if (!program->plan.node_runs[step.node.index] || def.cuda != nullptr) continue;
      const std::string at = program->graph.describe_origin(step.node);
      return invalid_argument(
          fmt::format("op '{}' has no CUDA kernel, and program '{}' needs it{}{}", def.name, program->name, at.empty() ? "" : " at ", at));
    }
  }
  for (cudaStream_t& each : streams_) GLIM_TRY(cuda_status(cudaStreamCreateWithFlags(&each, cudaStreamNonBlocking), "creating a stream"));
  const auto create = [](cudaEvent_t& event) {
    return cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  };
  GLIM_TRY(create(begun_));
  GLIM_TRY(create(communicated_));
  while (events_.size() < num_events) {
    cudaEvent_t event = nullptr;
    GLIM_TRY(create(event));
    events_.push_back(event);
  }
  void* memory = nullptr;
  GLIM_TRY(cuda_status(cudaMallocHost(&memory, kPinnedBytes), "pinned host memory"));
  pinned = static_cast<std::byte*>(memory);
  current_ = streams_[0];
  return products_.open();
}

// What compute does next comes after everything on the communication stream.
void CudaExecutor::Machine::join_communication() {
  if (!communicates_) return;
  record(cudaEventRecord(communicated_, streams_[1]), "recording an event");
  record(cudaStreamWaitEvent(streams_[0], communicated_, 0), "waiting for an event");
  communicates_ = false;
}

// Enqueues every step. A run waits after each one, so that a fault has the name of the op that made it.
void CudaExecutor::Machine::issue(const Executable& executable, Into into) {
  const auto steps = executable.steps();
  communicates_ = std::any_of(steps.begin(), steps.end(), [](const BoundStep& step) { return step.stream == Stream::kCommunication; });
  if (communicates_) {
    record(cudaEventRecord(begun_, streams_[0]), "recording an event");
    record(cudaStreamWaitEvent(streams_[1], begun_, 0), "waiting for an event");
  }
  for (const BoundStep& step : steps) {
    if (step.kind == BoundStep::Kind::kCopy && !step.node.valid()) join_communication();
    current_ = streams_[static_cast<size_t>(step.stream)];
    for (const uint32_t event : step.waits) record(cudaStreamWaitEvent(current_, events_[event], 0), "waiting for an event");
    const std::span<const TensorView> in = executable.inputs(step), out = executable.outputs(step);
    const bool had_failed = failed_;
    if (step.kind == BoundStep::Kind::kCopy)
      cuda::copy_view(in[0], out[0], current_);
    else if (step.kind == BoundStep::Kind::kKernel)
      step.def->cuda({in, out, step.attr_words, executable.workspace(), *this, step.def->user_data});
    record(cudaGetLastError(), "launching it");
    if (into == Into::kRun) record(cudaStreamSynchronize(current_), "running it");
    if (failed_ && !had_failed) {
      const Graph& graph = executable.program().graph;
      const std::string name = step.node.valid() ? std::string(graph.def(step.node).name) : "copying a state";
      const std::string at = step.node.valid() ? graph.describe_origin(step.node) : "";
      failure_.message = fmt::format("{}{}{}: {}", name, at.empty() ? "" : " at ", at, failure_.message);
    }
    if (step.signal != ~0U) record(cudaEventRecord(events_[step.signal], current_), "recording an event");
  }
  join_communication();
  current_ = streams_[0];
}

Status CudaExecutor::Machine::capture(const Executable& executable) {
  GLIM_TRY(cuda_status(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal), "beginning a capture"));
  issue(executable, Into::kCapture);
  cudaGraph_t graph = nullptr;
  record(cudaStreamEndCapture(streams_[0], &graph), "ending a capture");
  cudaGraphExec_t instance = nullptr;
  if (!failed_) record(cudaGraphInstantiate(&instance, graph, 0), "instantiating a captured step");
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (instance != nullptr) {
    captured_[&executable] = instance;
    record(cudaGraphUpload(instance, streams_[0]), "uploading a captured step");
  }
  return wait(executable.program().name);
}

Status CudaExecutor::Machine::launch(const Executable& executable) {
  last_ = &executable;
  if (const auto found = captured_.find(&executable); found != captured_.end()) {
    return cuda_status(cudaGraphLaunch(found->second, streams_[0]), executable.program().name);
  }
  issue(executable, Into::kRun);
  GLIM_TRY(wait(executable.program().name));
  return capture(executable);
}

Status CudaExecutor::Machine::wait(std::string_view what) {
  record(cudaStreamSynchronize(streams_[0]), what.empty() && last_ != nullptr ? std::string_view(last_->program().name) : what);
  if (!failed_) return ok();
  failed_ = false;
  return std::move(failure_);
}

// Calls copy(device pointer, bytes done so far, bytes) for pieces that fit into the pinned buffer.
template <class Copy>
Status CudaExecutor::Machine::transfer(const TensorView& view, Copy&& copy) {
  const Runs runs = runs_of(view);
  size_t done = 0;
  for (size_t row = 0; row < runs.rows; ++row) {
    for (size_t begin = 0; begin < runs.width; begin += kPinnedBytes) {
      const size_t bytes = std::min(kPinnedBytes, runs.width - begin);
      GLIM_TRY(copy(view.as<std::byte>() + row * runs.pitch + begin, done, bytes));
      done += bytes;
    }
  }
  return ok();
}

CudaExecutor::CudaExecutor(std::unique_ptr<Machine> machine) : machine_(std::move(machine)) {}
CudaExecutor::~CudaExecutor() = default;

Result<std::unique_ptr<CudaExecutor>> CudaExecutor::create(std::span<const Program* const> programs) {
  auto machine = std::make_unique<Machine>();
  GLIM_TRY(machine->open(programs));
  return std::unique_ptr<CudaExecutor>(new CudaExecutor(std::move(machine)));
}

Status CudaExecutor::run(const Executable& executable) {
  GLIM_TRY(launch(executable));
  return wait();
}
Status CudaExecutor::launch(const Executable& executable) { return machine_->launch(executable); }
Status CudaExecutor::wait() { return machine_->wait({}); }
void* CudaExecutor::stream() const { return machine_->stream(); }

Status CudaExecutor::write(const TensorView& to, std::span<const std::byte> from) {
  GLIM_CHECK(from.size() == to.type.bytes(), "the bytes are not those of the tensor");
  const auto on = static_cast<cudaStream_t>(stream());
  return machine_->transfer(to, [&](std::byte* device, size_t done, size_t bytes) -> Status {
    std::memcpy(machine_->pinned, from.data() + done, bytes);
    GLIM_TRY(cuda_status(cudaMemcpyAsync(device, machine_->pinned, bytes, cudaMemcpyHostToDevice, on), "copying to the device"));
    return cuda_status(cudaStreamSynchronize(on), "copying to the device");  // the pinned buffer is used again
  });
}

Status CudaExecutor::read(const TensorView& from, std::span<std::byte> to) {
  GLIM_CHECK(to.size() == from.type.bytes(), "the bytes are not those of the tensor");
  const auto on = static_cast<cudaStream_t>(stream());
  return machine_->transfer(from, [&](std::byte* device, size_t done, size_t bytes) -> Status {
    GLIM_TRY(cuda_status(cudaMemcpyAsync(machine_->pinned, device, bytes, cudaMemcpyDeviceToHost, on), "copying from the device"));
    GLIM_TRY(cuda_status(cudaStreamSynchronize(on), "copying from the device"));
    std::memcpy(to.data() + done, machine_->pinned, bytes);
    return ok();
  });
}

}  // namespace glim
