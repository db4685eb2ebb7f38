#include "tests/gpu/machines.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace glim::testing {
namespace {

std::array<size_t, kNumArenas> arena_bytes(const Spike& spike) {
  const MemoryPlan* const plans[] = {&spike.program.plan};
  return largest(plans);
}

template <class T>
T taken(Result<T> result) {
  GLIM_CHECK(bool(result), result.error().message);
  return *std::move(result);
}

template <class F>
void with_element(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF64: return f(double{});
    case DType::kF32: return f(float{});
    case DType::kBF16: return f(Bf16{});
    case DType::kI64: return f(int64_t{});
    case DType::kI32: return f(int32_t{});
  }
}

CudaArenas poisoned_arenas(const Spike& spike) {
  CudaArenas arenas = taken(CudaArenas::allocate(arena_bytes(spike)));
  for (size_t a = 0; a < kNumArenas; ++a) {
    const auto arena = static_cast<Arena>(a);
    if (arenas.bytes(arena) == 0) continue;
    EXPECT_EQ(cudaMemset(arenas.at(arena, 0), 0xff, arenas.bytes(arena)), cudaSuccess);
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return arenas;
}

std::unique_ptr<CudaExecutor> executor_for(const Spike& spike) {
  const Program* const programs[] = {&spike.program};
  return taken(CudaExecutor::create(programs));
}

}  // namespace

void Machine::set(std::string_view leaf, const std::vector<double>& values) {
  const LeafSlot* slot = spike_.layout.find(leaf);
  if (slot == nullptr) return;  // nothing reads it
  ASSERT_EQ(static_cast<size_t>(slot->type.shape.numel()), values.size()) << leaf;
  std::vector<std::byte> bytes(slot->type.bytes());
  with_element(slot->type.dtype, [&](auto element) {
    for (size_t i = 0; i < values.size(); ++i) {
      element = static_cast<decltype(element)>(values[i]);
      std::memcpy(bytes.data() + i * sizeof element, &element, sizeof element);
    }
  });
  const ValueId value = spike_.program.graph.find_leaf(leaf);
  if (value.valid()) write(executable().view(value), bytes);
}

std::vector<double> Machine::values_of(const TensorView& view) {
  std::vector<std::byte> bytes(view.type.bytes());
  read(view, bytes);
  std::vector<double> values(static_cast<size_t>(view.type.shape.numel()));
  with_element(view.type.dtype, [&](auto element) {
    for (size_t i = 0; i < values.size(); ++i) {
      std::memcpy(&element, bytes.data() + i * sizeof element, sizeof element);
      values[i] = static_cast<double>(element);
    }
  });
  return values;
}

std::vector<double> Machine::output(std::string_view name) {
  const ValueId value = spike_.program.graph.find_output(name);
  GLIM_CHECK(value.valid(), "the program has no such output");
  return values_of(executable().view(value));
}

std::vector<double> Machine::state(std::string_view name) { return values_of(executable().view(spike_.program.graph.find_leaf(name))); }

std::vector<std::byte> Machine::state_bytes(std::string_view name) {
  const TensorView view = executable().view(spike_.program.graph.find_leaf(name));
  std::vector<std::byte> bytes(view.type.bytes());
  read(view, bytes);
  return bytes;
}

CpuMachine::CpuMachine(const Spike& spike)
    : Machine(spike), arenas_(taken(Arenas::allocate(arena_bytes(spike)))), executable_(spike.program, arenas_) {
  for (size_t a = 0; a < kNumArenas; ++a) {
    const auto arena = static_cast<Arena>(a);
    if (arenas_.bytes(arena) > 0) std::memset(arenas_.at(arena, 0), 0xff, arenas_.bytes(arena));
  }
}
void CpuMachine::write(const TensorView& to, std::span<const std::byte> bytes) {
  GLIM_CHECK(to.contiguous(), "leaves are contiguous");
  std::memcpy(to.data, bytes.data(), bytes.size());
}
void CpuMachine::read(const TensorView& from, std::span<std::byte> bytes) {
  const size_t rows = from.contiguous() ? 1 : static_cast<size_t>(from.type.shape[0]), width = bytes.size() / std::max<size_t>(rows, 1);
  for (size_t row = 0; row < rows; ++row) {
    std::memcpy(bytes.data() + row * width, from.as<std::byte>() + row * static_cast<size_t>(from.row_stride) * size_of(from.type.dtype),
                width);
  }
}

CudaMachine::CudaMachine(const Spike& spike)
    : Machine(spike), arenas_(poisoned_arenas(spike)), executable_(spike.program, arenas_), executor_(executor_for(spike)) {}
void CudaMachine::write(const TensorView& to, std::span<const std::byte> bytes) {
  const Status status = executor_->write(to, bytes);
  ASSERT_TRUE(bool(status)) << status.error().message;
}
void CudaMachine::read(const TensorView& from, std::span<std::byte> bytes) {
  const Status status = executor_->read(from, bytes);
  ASSERT_TRUE(bool(status)) << status.error().message;
}

}  // namespace glim::testing
