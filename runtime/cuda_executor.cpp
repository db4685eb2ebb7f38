#include "runtime/cuda_executor.h"

#include <algorithm>
#include <cstring>
#include <map>

#include <nvtx3/nvToolsExt.h>

#include "ops/device/condition.h"
#include "ops/device/copy_view.h"
#include "runtime/cuda_error.h"
#include "runtime/cuda_products.h"
#include "runtime/cudnn/attention.h"

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

// A named range for profilers (NVTX): costs next to nothing where none is attached.
class Range {
 public:
  explicit Range(const std::string& name) { nvtxRangePushA(name.c_str()); }
  ~Range() { nvtxRangePop(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

// The calling thread uses this device while the object lives.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    if (cudaGetDevice(&before_) == cudaSuccess && before_ != device) changed_ = cudaSetDevice(device) == cudaSuccess;
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace

class CudaExecutor::Machine final : public KernelContext, public ops::AttentionLibrary {
 public:
  ~Machine() override;
  Status open(std::span<const Program* const> programs, ProductAlgorithms algorithms);
  Status launch(const Executable& executable, std::vector<StepTime>* profile);
  Result<double> time(const Executable& executable, int count);
  Status run_step(const Executable& executable, size_t index);
  Status wait(std::string_view what);
  template <class Copy>
  Status transfer(const TensorView& view, Copy&& copy);

  void parallel_for(int64_t, FunctionRef<void(int64_t)>) override {
    report_bug(__FILE__, __LINE__, "parallel_for", "a device kernel runs on no host thread");
  }
  void fail(std::string message) override { record(Error{ErrorCode::kInvalidArgument, std::move(message)}); }
  [[nodiscard]] void* stream() const override { return current_; }
  uint64_t* data_fault(std::string_view what, int64_t limit, std::string_view except) override;
  void when_more(const int64_t* count, int64_t threshold, FunctionRef<void()> body) override;
  void product(const DeviceProduct& product) override {
    GLIM_CHECK(current_ == streams_[0] || current_ == conditional_, "matrix products share one workspace: they run on the compute stream");
    if (Status status = products.run(product, current_); !status) record(std::move(status.error()));
  }

  CudaProducts products;
  int device = 0;
  // Plans share one workspace: not beside the compute stream.
  [[nodiscard]] bool is_forced() const override { return attention_.is_forced(); }
  bool attention(const KernelArgs& k) override { return current_ != streams_[1] && attention_.attention(k); }
  bool attention_vjp(const KernelArgs& k) override { return current_ != streams_[1] && attention_.attention_vjp(k); }

  std::byte* pinned = nullptr;  // [kPinnedBytes]
  size_t pinned_used = 0;       // by writes that may still be under way

 private:
  void record(Error error) {
    if (!failed_) failure_ = std::move(error);
    failed_ = true;
  }
  void record(cudaError_t result, std::string_view what) {
    if (Status status = cuda_status(result, what); !status) record(std::move(status.error()));
  }
  enum class Into : uint8_t {
    kRun,      // waits after each step, so that a fault has the name of the op that made it
    kProfile,  // records an event before and one after each step
    kCapture,
  };
  void issue(const Executable& executable, Into into);
  void issue_step(const Executable& executable, size_t index, Into into);
  void profile(const Executable& executable, std::vector<StepTime>& times);
  void join_communication();
  Status capture(const Executable& executable);
  void record_data_faults();

  cudaStream_t streams_[2] = {};  // by Stream
  cudaStream_t current_ = nullptr;
  cudaStream_t conditional_ = nullptr;  // what is captured on it belongs to the compute stream's conditional nodes
  cudaEvent_t begun_ = nullptr, communicated_ = nullptr;
  std::vector<cudaEvent_t> events_;                                                             // of a schedule
  CudnnAttention attention_{attention_choice() ? *attention_choice() : AttentionChoice::kOwn};  // open_machine refuses an error
  std::map<const Executable*, cudaGraphExec_t> captured_;
  const Executable* last_ = nullptr;
  bool failed_ = false, communicates_ = false;
  Error failure_;

  // Wrong values that kernels find in the data: one word per step that asked for one, on the device, all ones = nothing found.
  struct DataFault {
    const Executable* executable;
    const BoundStep* step;
    std::string_view what, except;
    int64_t limit;
  };
  const Executable* issued_ = nullptr;
  const BoundStep* issued_step_ = nullptr;
  std::map<const BoundStep*, size_t> fault_of_step_;
  std::vector<DataFault> faults_;
  size_t fault_capacity_ = 0;
  uint64_t *device_faults_ = nullptr, *host_faults_ = nullptr;  // [fault_capacity_]
  std::vector<cudaEvent_t> timers_;                             // of a profile: one for the beginning, then two per step
};

CudaExecutor::Machine::~Machine() {
  const CurrentDevice on(device);
  if (streams_[0] != nullptr) cudaStreamSynchronize(streams_[0]);
  for (const auto& [executable, graph] : captured_) cudaGraphExecDestroy(graph);
  for (const std::vector<cudaEvent_t>* list : {&events_, &timers_}) {
    for (const cudaEvent_t event : *list) cudaEventDestroy(event);
  }
  for (const cudaEvent_t event : {begun_, communicated_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  for (const cudaStream_t each : {streams_[0], streams_[1], conditional_}) {
    if (each != nullptr) cudaStreamDestroy(each);
  }
  if (pinned != nullptr) cudaFreeHost(pinned);
  if (host_faults_ != nullptr) cudaFreeHost(host_faults_);
  if (device_faults_ != nullptr) cudaFree(device_faults_);
}

Status CudaExecutor::Machine::open(std::span<const Program* const> programs, ProductAlgorithms algorithms) {
  uint32_t num_events = 0;
  for (const Program* program : programs) {
    num_events = std::max(num_events, program->schedule.num_events);
    fault_capacity_ += program->schedule.steps.size();
    for (const ScheduleStep& step : program->schedule.steps) {
      const OpDef& def = program->graph.def(step.node);
      if (!program->plan.node_runs[step.node.index] || def.cuda != nullptr) continue;
      const std::string at = program->graph.describe_origin(step.node);
      return invalid_argument(
          fmt::format("op '{}' has no CUDA kernel, and program '{}' needs it{}{}", def.name, program->name, at.empty() ? "" : " at ", at));
    }
  }
  GLIM_TRY(cuda_status(cudaGetDevice(&device), "asking for the current device"));
  for (cudaStream_t* each : {&streams_[0], &streams_[1], &conditional_})
    GLIM_TRY(cuda_status(cudaStreamCreateWithFlags(each, cudaStreamNonBlocking), "creating a stream"));
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
  const size_t fault_bytes = std::max<size_t>(1, fault_capacity_) * sizeof(uint64_t);
  GLIM_TRY(cuda_status(cudaMallocHost(&memory, fault_bytes), "pinned host memory"));
  host_faults_ = static_cast<uint64_t*>(memory);
  GLIM_TRY(cuda_status(cudaMalloc(&memory, fault_bytes), "device memory for faults in the data"));
  device_faults_ = static_cast<uint64_t*>(memory);
  GLIM_TRY(cuda_status(cudaMemsetAsync(device_faults_, 0xff, fault_bytes, streams_[0]), "device memory for faults in the data"));
  current_ = streams_[0];
  return products.open(algorithms);
}

// Captured, the body becomes the body of a conditional node (CUDA programming guide, "Conditional Graph Nodes").
void CudaExecutor::Machine::when_more(const int64_t* count, int64_t threshold, FunctionRef<void()> body) {
  GLIM_CHECK(current_ == streams_[0], "only the compute stream has conditions, and they do not nest");
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  const auto look = [&](const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges, size_t* num_nodes) {
    record(cudaStreamGetCaptureInfo(current_, &status, nullptr, &graph, nodes, edges, num_nodes), "looking at a capture");
  };
  look(nullptr, nullptr, nullptr);
  if (status != cudaStreamCaptureStatusActive) return body();
  cudaGraphConditionalHandle handle = 0;
  record(cudaGraphConditionalHandleCreate(&handle, graph, 0, 0), "making a condition");
  cuda::set_condition(handle, count, threshold, current_);
  const cudaGraphNode_t* before = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t num_before = 0;
  look(&before, &edges, &num_before);
  cudaGraphNodeParams node_params{};
  node_params.type = cudaGraphNodeTypeConditional;
  node_params.conditional.handle = handle;
  node_params.conditional.type = cudaGraphCondTypeIf;
  node_params.conditional.size = 1;
  cudaGraphNode_t node = nullptr;
  record(cudaGraphAddNode(&node, graph, before, edges, num_before, &node_params), "adding a conditional node");
  record(cudaStreamUpdateCaptureDependencies(current_, &node, nullptr, 1, cudaStreamSetCaptureDependencies), "adding a conditional node");
  if (failed_) return;
  record(cudaStreamBeginCaptureToGraph(conditional_, node_params.conditional.phGraph_out[0], nullptr, nullptr, 0,
                                       cudaStreamCaptureModeThreadLocal),
         "beginning a capture");
  current_ = conditional_;
  body();
  current_ = streams_[0];
  record(cudaStreamEndCapture(conditional_, &graph), "ending a capture");
}

// What compute does next comes after everything on the communication stream.
void CudaExecutor::Machine::join_communication() {
  if (!communicates_) return;
  record(cudaEventRecord(communicated_, streams_[1]), "recording an event");
  record(cudaStreamWaitEvent(streams_[0], communicated_, 0), "waiting for an event");
  communicates_ = false;
}

uint64_t* CudaExecutor::Machine::data_fault(std::string_view what, int64_t limit, std::string_view except) {
  const auto [found, is_new] = fault_of_step_.try_emplace(issued_step_, faults_.size());
  if (is_new) {
    GLIM_CHECK(faults_.size() < fault_capacity_, "a program that the executor was not made for");
    faults_.push_back({issued_, issued_step_, what, except, limit});
  }
  return device_faults_ + found->second;
}

// After everything enqueued: looks at what kernels reported since the last time.
void CudaExecutor::Machine::record_data_faults() {
  const size_t bytes = faults_.size() * sizeof(uint64_t);
  if (bytes == 0) return;
  record(cudaMemcpyAsync(host_faults_, device_faults_, bytes, cudaMemcpyDeviceToHost, streams_[0]), "reading faults in the data");
  record(cudaStreamSynchronize(streams_[0]), last_ != nullptr ? std::string_view(last_->program().name) : "running");
  if (failed_) return;
  for (size_t k = 0; k < faults_.size(); ++k) {
    if (host_faults_[k] == ~uint64_t{0}) continue;
    const DataFault& fault = faults_[k];
    const Graph& graph = fault.executable->program().graph;
    record(invalid_argument(fmt::format(
        "{} at {}: {} {} at position {} is outside [0, {}){}", graph.def(fault.step->node).name, graph.describe_origin(fault.step->node),
        fault.what, static_cast<int32_t>(host_faults_[k] & 0xffffffffU), host_faults_[k] >> 32, fault.limit, fault.except)));
    record(cudaMemsetAsync(device_faults_, 0xff, bytes, streams_[0]), "clearing faults in the data");
    return;
  }
}

void CudaExecutor::Machine::issue_step(const Executable& executable, size_t index, Into into) {
  const BoundStep& step = executable.steps()[index];
  const Range range(executable.describe(step));
  if (step.kind == BoundStep::Kind::kCopy && !step.node.valid()) join_communication();
  current_ = streams_[static_cast<size_t>(step.stream)];
  issued_ = &executable;
  issued_step_ = &step;
  for (const uint32_t event : step.waits) record(cudaStreamWaitEvent(current_, events_[event], 0), "waiting for an event");
  const std::span<const TensorView> in = executable.inputs(step), out = executable.outputs(step);
  const bool had_failed = failed_;
  if (into == Into::kProfile) record(cudaEventRecord(timers_[2 * index + 1], current_), "recording an event");
  if (step.kind == BoundStep::Kind::kCopy)
    cuda::copy_view(in[0], out[0], current_);
  else if (step.kind == BoundStep::Kind::kKernel)
    step.def->cuda({in, out, step.attr_words, executable.workspace(), *this, step.def->user_data});
  record(cudaGetLastError(), "launching it");
  if (into == Into::kProfile) record(cudaEventRecord(timers_[2 * index + 2], current_), "recording an event");
  if (into == Into::kRun) record(cudaStreamSynchronize(current_), "running it");
  if (failed_ && !had_failed) failure_.message = fmt::format("{}: {}", executable.describe(step), failure_.message);
  if (step.signal != ~0U) record(cudaEventRecord(events_[step.signal], current_), "recording an event");
}

void CudaExecutor::Machine::issue(const Executable& executable, Into into) {
  const Range range(executable.program().name);
  const auto steps = executable.steps();
  communicates_ = std::any_of(steps.begin(), steps.end(), [](const BoundStep& step) { return step.stream == Stream::kCommunication; });
  if (communicates_) {
    record(cudaEventRecord(begun_, streams_[0]), "recording an event");
    record(cudaStreamWaitEvent(streams_[1], begun_, 0), "waiting for an event");
  }
  for (size_t k = 0; k < steps.size(); ++k) issue_step(executable, k, into);
  join_communication();
  current_ = streams_[0];
}

// Every stream's steps with its own times. Nothing waits in between: the device runs as it would without events.
void CudaExecutor::Machine::profile(const Executable& executable, std::vector<StepTime>& times) {
  while (timers_.size() < 2 * times.size() + 1 && !failed_) {
    cudaEvent_t event = nullptr;
    record(cudaEventCreate(&event), "creating an event");
    if (event != nullptr) timers_.push_back(event);
  }
  if (failed_) return;
  record(cudaEventRecord(timers_[0], streams_[0]), "recording an event");
  issue(executable, Into::kProfile);
  record(cudaStreamSynchronize(streams_[0]), executable.program().name);
  for (size_t k = 0; k < times.size() && !failed_; ++k) {
    float start = 0, taken = 0;
    record(cudaEventElapsedTime(&start, timers_[0], timers_[2 * k + 1]), "timing a step");
    record(cudaEventElapsedTime(&taken, timers_[2 * k + 1], timers_[2 * k + 2]), "timing a step");
    times[k] = {1e-3 * static_cast<double>(start), 1e-3 * static_cast<double>(taken)};
  }
}

Status CudaExecutor::Machine::run_step(const Executable& executable, size_t index) {
  last_ = &executable;
  issue_step(executable, index, Into::kRun);
  current_ = streams_[0];
  return wait(executable.program().name);
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

Status CudaExecutor::Machine::launch(const Executable& executable, std::vector<StepTime>* times) {
  last_ = &executable;
  const auto found = captured_.find(&executable);
  if (found != captured_.end() && times == nullptr) {
    const Range range(executable.program().name);
    return cuda_status(cudaGraphLaunch(found->second, streams_[0]), executable.program().name);
  }
  if (times != nullptr)
    profile(executable, *times);
  else
    issue(executable, Into::kRun);
  GLIM_TRY(wait(executable.program().name));
  products.keep();
  return found != captured_.end() ? ok() : capture(executable);
}

Result<double> CudaExecutor::Machine::time(const Executable& executable, int count) {
  if (!captured_.contains(&executable)) GLIM_TRY(launch(executable, nullptr));
  for (size_t k = timers_.size(); k < 2; ++k) {
    GLIM_TRY(cuda_status(cudaEventCreate(&timers_.emplace_back(nullptr)), "creating an event"));
  }
  GLIM_TRY(cuda_status(cudaEventRecord(timers_[0], streams_[0]), "timing"));
  for (int k = 0; k < count; ++k) GLIM_TRY(launch(executable, nullptr));
  GLIM_TRY(cuda_status(cudaEventRecord(timers_[1], streams_[0]), "timing"));
  GLIM_TRY(wait(executable.program().name));
  float milliseconds = 0;
  GLIM_TRY(cuda_status(cudaEventElapsedTime(&milliseconds, timers_[0], timers_[1]), "timing"));
  return 1e-3 * static_cast<double>(milliseconds);
}

Status CudaExecutor::Machine::wait(std::string_view what) {
  record(cudaStreamSynchronize(streams_[0]), what.empty() && last_ != nullptr ? std::string_view(last_->program().name) : what);
  record_data_faults();
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

CudaExecutor::CudaExecutor(std::unique_ptr<Machine> machine, int num_threads) : Executor(num_threads), machine_(std::move(machine)) {}
CudaExecutor::~CudaExecutor() = default;

Result<std::unique_ptr<CudaExecutor>> CudaExecutor::create(std::span<const Program* const> programs, int num_threads,
                                                           ProductAlgorithms algorithms) {
  auto machine = std::make_unique<Machine>();
  GLIM_TRY(machine->open(programs, algorithms));
  return std::unique_ptr<CudaExecutor>(new CudaExecutor(std::move(machine), num_threads));
}

Status CudaExecutor::run(const Executable& executable) {
  GLIM_TRY(check_not_cancelled(executable));
  GLIM_TRY(launch(executable));
  return wait();
}
Status CudaExecutor::run_step(const Executable& executable, size_t index) {
  const CurrentDevice on(machine_->device);
  return machine_->run_step(executable, index);
}
Status CudaExecutor::launch(const Executable& executable) {
  const CurrentDevice on(machine_->device);
  return machine_->launch(executable, profile_);
}
Status CudaExecutor::wait() {
  const CurrentDevice on(machine_->device);
  return machine_->wait({});
}
Result<double> CudaExecutor::time(const Executable& executable, int count) {
  const CurrentDevice on(machine_->device);
  return machine_->time(executable, count);
}
AlgorithmChoices CudaExecutor::algorithms() const { return machine_->products.algorithms(); }
void CudaExecutor::set_algorithms(const AlgorithmChoices& chosen) { machine_->products.set_algorithms(chosen); }
void* CudaExecutor::stream() const { return machine_->stream(); }

Status CudaExecutor::write(const TensorView& to, std::span<const std::byte> from) {
  GLIM_CHECK(from.size() == to.type.bytes(), "the bytes are not those of the tensor");
  const CurrentDevice current(machine_->device);
  const auto on = static_cast<cudaStream_t>(stream());
  return machine_->transfer(to, [&](std::byte* device, size_t done, size_t bytes) -> Status {
    if (machine_->pinned_used + bytes > kPinnedBytes) {
      GLIM_TRY(cuda_status(cudaStreamSynchronize(on), "copying to the device"));
      machine_->pinned_used = 0;
    }
    std::byte* const staged = machine_->pinned + machine_->pinned_used;
    std::memcpy(staged, from.data() + done, bytes);
    machine_->pinned_used += bytes;
    return cuda_status(cudaMemcpyAsync(device, staged, bytes, cudaMemcpyHostToDevice, on), "copying to the device");
  });
}

Status CudaExecutor::clear(const TensorView& view) {
  cuda::clear_view(view, stream());
  return cuda_status(cudaGetLastError(), "clearing device memory");
}

Status CudaExecutor::read(const TensorView& from, std::span<std::byte> to) {
  GLIM_CHECK(to.size() == from.type.bytes(), "the bytes are not those of the tensor");
  const CurrentDevice current(machine_->device);
  const auto on = static_cast<cudaStream_t>(stream());
  GLIM_TRY(cuda_status(cudaStreamSynchronize(on), "copying from the device"));  // writes are done with the pinned memory
  machine_->pinned_used = 0;
  return machine_->transfer(from, [&](std::byte* device, size_t done, size_t bytes) -> Status {
    GLIM_TRY(cuda_status(cudaMemcpyAsync(machine_->pinned, device, bytes, cudaMemcpyDeviceToHost, on), "copying from the device"));
    GLIM_TRY(cuda_status(cudaStreamSynchronize(on), "copying from the device"));
    std::memcpy(to.data() + done, machine_->pinned, bytes);
    return ok();
  });
}

}  // namespace glim
