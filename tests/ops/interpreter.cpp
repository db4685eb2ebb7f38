#include "tests/ops/interpreter.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <thread>

#include "engine/error.h"
#include "ops/bf16.h"

namespace glim::testing {
namespace {

constexpr int64_t kPoison = 0x5a5a5a5a;

// 256-byte aligned and exactly as long as asked for, so that a sanitizer sees one byte too many.
class Workspace {
 public:
  explicit Workspace(size_t size) : size_(size), data_(static_cast<std::byte*>(::operator new (size, std::align_val_t{256}))) {
    std::memset(data_, 0xff, size);  // NaN in every floating-point type
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { ::operator delete (data_, std::align_val_t{256}); }
  [[nodiscard]] std::span<std::byte> span() const { return {data_, size_}; }

 private:
  size_t size_;
  std::byte* data_;
};

double read(const std::byte* at, DType dtype) {
  const auto as = [at](auto zero) {
    std::memcpy(&zero, at, sizeof zero);
    return static_cast<double>(zero);
  };
  switch (dtype) {
    case DType::kF64: return as(0.0);
    case DType::kF32: return as(0.0F);
    case DType::kBF16: return as(Bf16());
    case DType::kI64: return as(int64_t{0});
    case DType::kI32: return as(int32_t{0});
  }
  return 0;
}

void write(std::byte* at, DType dtype, double value) {
  const auto as = [at](auto typed) { std::memcpy(at, &typed, sizeof typed); };
  switch (dtype) {
    case DType::kF64: return as(value);
    case DType::kF32: return as(static_cast<float>(value));
    case DType::kBF16: return as(Bf16(value));
    case DType::kI64: return as(static_cast<int64_t>(value));
    case DType::kI32: return as(static_cast<int32_t>(value));
  }
}

double poison_of(DType dtype) { return is_float(dtype) ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(kPoison); }
bool is_poison(double value, DType dtype) { return is_float(dtype) ? std::isnan(value) : value == static_cast<double>(kPoison); }

}  // namespace

Tensor::Tensor(const TensorType& type, int64_t margin)
    : type_(type),
      stride_(type.shape.last() + (type.shape.rank == 2 ? margin : 0)),
      bytes_(std::max<size_t>(
          1, static_cast<size_t>(type.shape.rank == 2 ? type.shape[0] * stride_ : type.shape.numel()) * size_of(type.dtype))) {
  poison();
}

Tensor::Tensor(const TensorType& type, const std::vector<double>& values) : Tensor(type) {
  GLIM_CHECK(static_cast<int64_t>(values.size()) == numel(), "as many values as elements");
  for (int64_t i = 0; i < numel(); ++i) set(i, values[static_cast<size_t>(i)]);
}

size_t Tensor::offset(int64_t i) const {
  const int64_t width = type_.shape.last();
  return static_cast<size_t>(i / width * stride_ + i % width) * size_of(type_.dtype);
}
double Tensor::get(int64_t i) const { return read(bytes_.data() + offset(i), type_.dtype); }
void Tensor::set(int64_t i, double value) { write(bytes_.data() + offset(i), type_.dtype, value); }

std::vector<double> Tensor::values() const {
  std::vector<double> all(static_cast<size_t>(numel()));
  for (int64_t i = 0; i < numel(); ++i) all[static_cast<size_t>(i)] = get(i);
  return all;
}

std::vector<std::byte> Tensor::bits() const {
  const size_t size = size_of(type_.dtype);
  std::vector<std::byte> all(static_cast<size_t>(numel()) * size);
  for (int64_t i = 0; i < numel(); ++i) std::memcpy(all.data() + static_cast<size_t>(i) * size, bytes_.data() + offset(i), size);
  return all;
}

void Tensor::poison() {
  const size_t size = size_of(type_.dtype);
  for (size_t at = 0; at + size <= bytes_.size(); at += size) write(bytes_.data() + at, type_.dtype, poison_of(type_.dtype));
}

bool Tensor::margin_is_poisoned() const {
  const size_t size = size_of(type_.dtype);
  const int64_t width = type_.shape.last();
  for (int64_t row = 0; type_.shape.rank == 2 && row < type_.shape[0]; ++row) {
    for (int64_t column = width; column < stride_; ++column) {
      if (!is_poison(read(bytes_.data() + static_cast<size_t>(row * stride_ + column) * size, type_.dtype), type_.dtype)) return false;
    }
  }
  return true;
}

int64_t Tensor::num_poisoned() const {
  int64_t count = 0;
  for (int64_t i = 0; i < numel(); ++i) count += is_poison(get(i), type_.dtype) ? 1 : 0;
  return count;
}

Tensor Tensor::with_margin(int64_t margin) const {
  Tensor wide(type_, margin);
  const size_t size = size_of(type_.dtype);
  for (int64_t i = 0; i < numel(); ++i) std::memcpy(wide.bytes_.data() + wide.offset(i), bytes_.data() + offset(i), size);
  return wide;
}

Tensor Tensor::with_dtype(DType dtype) const { return Tensor({dtype, type_.shape}, values()); }

void TestContext::parallel_for(int64_t num_tasks, FunctionRef<void(int64_t)> task) {
  if (num_threads_ == 1 || num_tasks <= 1) {
    for (int64_t i = 0; i < num_tasks; ++i) task(i);
    return;
  }
  std::atomic<int64_t> left = num_tasks;
  const auto work = [&] {
    for (int64_t i = --left; i >= 0; i = --left) task(i);
  };
  std::vector<std::jthread> threads;
  for (int t = 0; t < num_threads_; ++t) threads.emplace_back(work);
}

void TestContext::fail(std::string message) {
  const std::lock_guard lock(mutex_);
  if (error_.empty()) error_ = std::move(message);
}

KernelRun run_op(const OpDef& def, std::span<const uint32_t> attr_words, std::span<const Tensor* const> in, const RunOptions& options) {
  std::vector<const TensorType*> types;
  std::vector<Tensor> operands;
  for (size_t k = 0; k < in.size(); ++k) {
    types.push_back(in[k] != nullptr ? &in[k]->type() : nullptr);
    operands.push_back(in[k] == nullptr ? Tensor() : in[k]->with_margin(options.margins ? static_cast<int64_t>(1 + k % 3) : 0));
  }
  const Result<Types> out_types = def.infer({types, attr_words});
  GLIM_CHECK(bool(out_types), std::string(def.name) + ": " + out_types.error().message);
  const Cost cost = def.cost({types, *out_types, attr_words});

  constexpr int kOwn = -1;
  std::vector<int> lies_on(out_types->size(), kOwn);  // the operand whose buffer an output has
  std::vector<bool> overwritten(in.size(), false);
  std::vector<Tensor> own;
  for (size_t k = 0; k < out_types->size(); ++k) {
    const AliasFact fact = def.memory.alias({types, attr_words}, static_cast<uint16_t>(k));
    own.emplace_back((*out_types)[k], options.margins ? static_cast<int64_t>(2 + k % 2) : 0);
    if (fact.kind != AliasKind::kMust && !(fact.kind == AliasKind::kInPlace && options.in_place)) continue;
    GLIM_CHECK(fact.operand < in.size() && in[fact.operand] != nullptr && in[fact.operand]->type() == (*out_types)[k],
               std::string(def.name) + ": an output can only overwrite an operand of its own type");
    GLIM_CHECK(!overwritten[fact.operand], std::string(def.name) + ": two outputs overwrite one operand");
    lies_on[k] = fact.operand;
    overwritten[fact.operand] = true;
  }
  std::vector<TensorView> in_views, out_views;
  for (size_t k = 0; k < in.size(); ++k) in_views.push_back(in[k] != nullptr ? operands[k].view() : TensorView{});
  for (size_t k = 0; k < own.size(); ++k)
    out_views.push_back(lies_on[k] == kOwn ? own[k].view() : operands[static_cast<size_t>(lies_on[k])].view());

  const Workspace workspace(cost.workspace_bytes);
  TestContext context(options.num_threads);
  def.cpu({in_views, out_views, attr_words, workspace.span(), context});

  KernelRun run{.out = {}, .error = context.error()};
  for (size_t k = 0; k < in.size(); ++k) {
    if (in[k] == nullptr) continue;
    run.margins_intact = run.margins_intact && operands[k].margin_is_poisoned();
    if (!overwritten[k]) run.operands_intact = run.operands_intact && operands[k].bits() == in[k]->bits();
  }
  for (size_t k = 0; k < own.size(); ++k) {
    run.out.push_back(lies_on[k] == kOwn ? own[k] : operands[static_cast<size_t>(lies_on[k])]);
    run.margins_intact = run.margins_intact && run.out.back().margin_is_poisoned();
  }
  return run;
}

std::vector<Tensor> evaluate(const Graph& graph, const std::vector<std::pair<ValueId, Tensor>>& leaves) {
  std::vector<Tensor> values(graph.num_values());
  std::vector<bool> known(graph.num_values(), false);
  for (const auto& [leaf, tensor] : leaves) {
    GLIM_CHECK(graph.type(leaf) == tensor.type(), "a leaf has its value's type");
    values[leaf.index] = tensor;
    known[leaf.index] = true;
  }
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    if (graph.is_leaf(NodeId{n})) {
      GLIM_CHECK(known[graph.output({n}).index], "every leaf needs a value");
      continue;
    }
    std::vector<const Tensor*> in;
    for (const ValueId v : graph.inputs({n})) in.push_back(v.valid() ? &values[v.index] : nullptr);
    KernelRun run = run_op(graph.def({n}), graph.attr_words({n}), in);
    GLIM_CHECK(run.error.empty(), run.error);
    for (uint32_t k = 0; k < run.out.size(); ++k) values[graph.output({n}, k).index] = std::move(run.out[k]);
  }
  return values;
}

double norm(const std::vector<double>& a) {
  double sum = 0;
  for (const double x : a) sum += x * x;
  return std::sqrt(sum);
}

double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  GLIM_CHECK(a.size() == b.size(), "one length");
  std::vector<double> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return norm(difference) / norm(b);
}

}  // namespace glim::testing
