#include "runtime/backend.h"

#include <fmt/format.h>

#include "engine/suggest.h"
#include "ops/gemm.h"
#include "runtime/cpu_executor.h"
#include "runtime/device.h"
#ifdef GLIM_HAS_CUDA
#include "runtime/cuda_arenas.h"
#include "runtime/cuda_executor.h"
#include "runtime/cudnn/attention.h"
#endif

namespace glim {
namespace {

constexpr std::string_view kNames[] = {"cpu", "cuda"};

template <class Owner>
void own(Machine& machine, Owner arenas) {
  auto owner = std::make_shared<Owner>(std::move(arenas));
  machine.arenas = *owner;
  machine.memory = std::move(owner);
}

}  // namespace

std::string_view to_string(Backend backend) { return kNames[static_cast<size_t>(backend)]; }

Result<Backend> parse_backend(std::string_view text) {
  for (size_t k = 0; k < std::size(kNames); ++k) {
    if (kNames[k] == text) return static_cast<Backend>(k);
  }
  return invalid_argument(fmt::format("the backend is cpu or cuda, not '{}'{}", text, did_you_mean(text, kNames)));
}

Status check_usable(Backend backend) {
  std::string why_not;
  if (backend == Backend::kCpu) return ok();
#ifdef GLIM_HAS_CUDA
  GLIM_TRY(attention_choice());
#endif
  if (cuda_available(why_not)) return ok();
  return invalid_argument(fmt::format("the cuda backend cannot be used: {}", why_not));
}

std::string product_library(Backend backend) { return backend == Backend::kCpu ? cpu::product_library() : cuda_libraries(); }

#ifdef GLIM_HAS_CUDA
std::string attention_library(Backend backend) { return backend == Backend::kCpu ? "own kernels" : attention_library_name(); }
std::vector<std::string> take_backend_notes() { return take_attention_notes(); }
#else
std::string attention_library(Backend) { return "own kernels"; }
std::vector<std::string> take_backend_notes() { return {}; }
#endif

size_t bytes_beside_arenas(Backend backend) { return backend == Backend::kCuda ? kProductsWorkspaceBytes : 0; }

Result<Machine> open_machine(Backend backend, std::span<const Program* const> programs, int num_threads,
                             [[maybe_unused]] ProductAlgorithms algorithms) {
  GLIM_TRY(check_usable(backend));
  std::vector<const MemoryPlan*> plans;
  for (const Program* program : programs) plans.push_back(&program->plan);
  Machine machine;
  if (backend == Backend::kCpu) {
    GLIM_ASSIGN(Arenas arenas, Arenas::allocate(largest(plans)));
    own(machine, std::move(arenas));
    machine.executor = std::make_unique<CpuExecutor>(num_threads);
  }
#ifdef GLIM_HAS_CUDA
  if (backend == Backend::kCuda) {
    GLIM_ASSIGN(machine.executor, CudaExecutor::create(programs, num_threads, algorithms));
    GLIM_ASSIGN(CudaArenas arenas, CudaArenas::allocate(largest(plans)));
    own(machine, std::move(arenas));
  }
#endif
  return machine;
}

}  // namespace glim
