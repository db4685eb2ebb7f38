#include "tests/gpu/device_run.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "runtime/cuda_products.h"

namespace glim::testing {
namespace {

constexpr size_t kGuard = 512;

void must(cudaError_t result) { GLIM_CHECK(result == cudaSuccess, cudaGetErrorString(result)); }

// Device memory, all ones at first: NaN as a float, -1 as an integer.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes) : bytes_(bytes) {
    must(cudaMalloc(&data_, bytes + kGuard));
    must(cudaMemset(data_, 0xff, bytes + kGuard));
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  DeviceBuffer(DeviceBuffer&& other) noexcept : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;
  ~DeviceBuffer() { cudaFree(data_); }
  [[nodiscard]] std::byte* at(size_t offset) const { return static_cast<std::byte*>(data_) + offset; }
  [[nodiscard]] bool guard_is_intact() const {
    std::vector<std::byte> guard(kGuard);
    must(cudaMemcpy(guard.data(), at(bytes_), kGuard, cudaMemcpyDeviceToHost));
    return std::all_of(guard.begin(), guard.end(), [](std::byte b) { return b == std::byte{0xff}; });
  }

 private:
  size_t bytes_;
  void* data_ = nullptr;
};

class DeviceContext final : public KernelContext {
 public:
  DeviceContext() : faults_(sizeof(uint64_t)) {
    const Status opened = products_.open();
    GLIM_CHECK(bool(opened), opened ? "" : opened.error().message);
  }
  void parallel_for(int64_t, FunctionRef<void(int64_t)>) override { report_bug(__FILE__, __LINE__, "parallel_for", "on a device"); }
  void fail(std::string message) override { error_ = std::move(message); }
  uint64_t* data_fault(std::string_view what, int64_t limit, std::string_view except) override {
    what_ = fmt::format("{} {{}} at position {{}} is outside [0, {}){}", what, limit, except);
    return reinterpret_cast<uint64_t*>(faults_.at(0));
  }
  void product(const DeviceProduct& product) override {
    if (const Status status = products_.run(product, nullptr); !status) error_ = status.error().message;
  }
  std::string take_error() {
    const cudaError_t launched = cudaGetLastError(), ran = cudaDeviceSynchronize();
    if (error_.empty() && launched != cudaSuccess) error_ = cudaGetErrorString(launched);
    if (error_.empty() && ran != cudaSuccess) error_ = cudaGetErrorString(ran);
    uint64_t fault = 0;
    must(cudaMemcpy(&fault, faults_.at(0), sizeof fault, cudaMemcpyDeviceToHost));
    if (error_.empty() && fault != ~uint64_t{0})
      error_ = fmt::format(fmt::runtime(what_), static_cast<int32_t>(fault & 0xffffffffU), fault >> 32);
    must(cudaMemset(faults_.at(0), 0xff, sizeof fault));
    return std::exchange(error_, {});
  }

 private:
  CudaProducts products_;
  DeviceBuffer faults_;
  std::string error_, what_;
};

size_t bytes_of(const TensorView& view) {
  const int64_t elements = view.type.shape.rank == 2 ? view.type.shape[0] * view.row_stride : view.type.shape.numel();
  return static_cast<size_t>(elements) * size_of(view.type.dtype);
}

// A tensor of the host with its bytes (margins, too) on the device.
struct Mirrored {
  Tensor host;
  DeviceBuffer device;
  size_t offset;

  Mirrored(Tensor tensor, bool misaligned)
      : host(std::move(tensor)), device(bytes_of(host.view()) + 64), offset(misaligned ? size_of(host.type().dtype) : 0) {
    if (const size_t bytes = bytes_of(host.view()); bytes > 0)
      must(cudaMemcpy(device.at(offset), host.view().data, bytes, cudaMemcpyHostToDevice));
  }
  TensorView view() {
    TensorView there = host.view();
    there.data = device.at(offset);
    return there;
  }
  void fetch() {
    if (const size_t bytes = bytes_of(host.view()); bytes > 0)
      must(cudaMemcpy(host.view().data, device.at(offset), bytes, cudaMemcpyDeviceToHost));
  }
};

}  // namespace

DeviceRun run_op_on_device(const OpDef& def, std::span<const uint32_t> attr_words, std::span<const Tensor* const> in,
                           const DeviceRunOptions& options) {
  static DeviceContext context;
  std::vector<const TensorType*> types;
  std::vector<std::unique_ptr<Mirrored>> operands, own;
  for (size_t k = 0; k < in.size(); ++k) {
    types.push_back(in[k] != nullptr ? &in[k]->type() : nullptr);
    const int64_t margin = options.margins ? static_cast<int64_t>(1 + k % 3) : 0;
    operands.push_back(in[k] == nullptr ? nullptr : std::make_unique<Mirrored>(in[k]->with_margin(margin), options.misaligned));
  }
  const Result<Types> out_types = def.infer({types, attr_words});
  GLIM_CHECK(bool(out_types), std::string(def.name) + ": " + out_types.error().message);
  const Cost cost = def.cost({types, *out_types, attr_words});

  constexpr int kOwn = -1;
  std::vector<int> lies_on(out_types->size(), kOwn);
  std::vector<bool> overwritten(in.size(), false);
  for (size_t k = 0; k < out_types->size(); ++k) {
    const AliasFact fact = def.memory.alias({types, attr_words}, static_cast<uint16_t>(k));
    own.push_back(
        std::make_unique<Mirrored>(Tensor((*out_types)[k], options.margins ? static_cast<int64_t>(2 + k % 2) : 0), options.misaligned));
    if (fact.kind != AliasKind::kMust && !(fact.kind == AliasKind::kInPlace && options.in_place)) continue;
    lies_on[k] = fact.operand;
    overwritten[fact.operand] = true;
  }
  std::vector<TensorView> in_views, out_views;
  for (const auto& operand : operands) in_views.push_back(operand != nullptr ? operand->view() : TensorView{});
  for (size_t k = 0; k < own.size(); ++k)
    out_views.push_back(lies_on[k] == kOwn ? own[k]->view() : operands[static_cast<size_t>(lies_on[k])]->view());

  const DeviceBuffer workspace(cost.workspace_bytes);
  def.cuda({in_views, out_views, attr_words, {workspace.at(0), cost.workspace_bytes}, context});

  DeviceRun run;
  run.error = context.take_error();
  run.workspace_intact = workspace.guard_is_intact();
  for (size_t k = 0; k < in.size(); ++k) {
    if (in[k] == nullptr) continue;
    operands[k]->fetch();
    run.margins_intact = run.margins_intact && operands[k]->host.margin_is_poisoned() && operands[k]->device.guard_is_intact();
    if (!overwritten[k]) run.operands_intact = run.operands_intact && operands[k]->host.bits() == in[k]->bits();
  }
  for (size_t k = 0; k < own.size(); ++k) {
    own[k]->fetch();
    run.out.push_back(lies_on[k] == kOwn ? own[k]->host : operands[static_cast<size_t>(lies_on[k])]->host);
    run.margins_intact = run.margins_intact && run.out.back().margin_is_poisoned() && own[k]->device.guard_is_intact();
  }
  return run;
}

}  // namespace glim::testing
