#pragma once
// Where programs run: the memory and the executor of a model, on the CPU or on an NVIDIA GPU.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/executable.h"

namespace glim {

enum class Backend : uint8_t { kCpu, kCuda };
[[nodiscard]] std::string_view to_string(Backend backend);           // "cpu", "cuda"
[[nodiscard]] Result<Backend> parse_backend(std::string_view text);  // an error with the closest name
// An error that says what is missing: the CUDA toolkit when this was built, a driver that is new enough, a device.
[[nodiscard]] Status check_usable(Backend backend);
// What multiplies matrices there, with versions, because it decides last bits: "eigen 3.4.0, avx2", "cuBLASLt 13.1.0, CUDA 13.0".
[[nodiscard]] std::string product_library(Backend backend);
// What serves attention there: "own kernels", or "cuDNN 9.19.0 (PATH) where it serves" (environment variables: runtime/README.md).
[[nodiscard]] std::string attention_library(Backend backend);
// What was to be served by a library and is not, with the reason: a line each, once per process.
[[nodiscard]] std::vector<std::string> take_backend_notes();

struct Machine {
  ArenaBases arenas;
  std::shared_ptr<void> memory;  // owns the arenas
  std::unique_ptr<Executor> executor;
};
// Arenas large enough for each program, zeroed, and an executor. kOutOfMemory names the arena and the bytes; an op without a kernel for the
// backend is an error that names it.
Result<Machine> open_machine(Backend backend, std::span<const Program* const> programs, int num_threads = 0,
                             ProductAlgorithms algorithms = ProductAlgorithms::kFixed);
// Memory that a machine takes there beside the arenas of its plans: the workspace of matrix products.
[[nodiscard]] size_t bytes_beside_arenas(Backend backend);

}  // namespace glim
