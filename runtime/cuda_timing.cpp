#include "runtime/cuda_timing.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "ops/bf16.h"
#include "runtime/cuda_error.h"
#include "runtime/random.h"

namespace glim {
namespace {

constexpr size_t kPatternBytes = size_t{1} << 20;
constexpr double kWithin = 1.02;    // of the best time: as good
constexpr double kFinalists = 1.3;  // of the best first time: measured again
constexpr int kRounds = 5;
constexpr float kLeastMilliseconds = 0.2F;  // of one measurement: an event's own time does not count then

template <class T>
std::vector<std::byte> normal_numbers() {
  std::vector<T> numbers(kPatternBytes / sizeof(T));
  const uint64_t stream = make_stream(1, "products");
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = T(normal_draw(stream, i));
  const auto bytes = std::as_bytes(std::span(numbers));
  return {bytes.begin(), bytes.end()};
}

const std::vector<std::byte>& pattern(DType dtype) {
  static const std::vector<std::byte> f64 = normal_numbers<double>(), f32 = normal_numbers<float>(), bf16 = normal_numbers<Bf16>();
  return dtype == DType::kF64 ? f64 : dtype == DType::kF32 ? f32 : bf16;
}

struct Events {
  cudaEvent_t from = nullptr, to = nullptr;
  ~Events() {
    for (const cudaEvent_t event : {from, to}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
};

}  // namespace

RandomDeviceMemory::RandomDeviceMemory(size_t bytes, DType dtype, cudaStream_t stream) {
  if (bytes == 0) return;
  if (cudaMalloc(&data_, bytes) != cudaSuccess) {
    cudaGetLastError();  // not an error of the next launch
    data_ = nullptr;
    return;
  }
  const std::vector<std::byte>& numbers = pattern(dtype);
  auto* const to = static_cast<std::byte*>(data_);
  size_t done = std::min(bytes, numbers.size());
  cudaMemcpyAsync(to, numbers.data(), done, cudaMemcpyHostToDevice, stream);
  for (; done < bytes; done *= 2) cudaMemcpyAsync(to + done, to, std::min(done, bytes - done), cudaMemcpyDeviceToDevice, stream);
}

RandomDeviceMemory::~RandomDeviceMemory() {
  if (data_ != nullptr) cudaFree(data_);  // waits for what uses it
}

Result<size_t> fastest_of(size_t num_ways, cudaStream_t stream, FunctionRef<bool(size_t)> run) {
  constexpr float kNever = std::numeric_limits<float>::infinity();
  Events events;
  GLIM_TRY(cuda_status(cudaEventCreate(&events.from), "creating an event"));
  GLIM_TRY(cuda_status(cudaEventCreate(&events.to), "creating an event"));
  const auto measure = [&](size_t way, int count) -> Result<float> {
    float milliseconds = 0;
    bool could = true;
    GLIM_TRY(cuda_status(cudaEventRecord(events.from, stream), "timing"));
    for (int k = 0; k < count && could; ++k) could = run(way);
    GLIM_TRY(cuda_status(cudaEventRecord(events.to, stream), "timing"));
    GLIM_TRY(cuda_status(cudaEventSynchronize(events.to), "timing"));
    GLIM_TRY(cuda_status(cudaEventElapsedTime(&milliseconds, events.from, events.to), "timing"));
    if (!could) cudaGetLastError();  // a way that this device refuses is no error of the next launch
    return could ? milliseconds / static_cast<float>(count) : kNever;
  };
  std::vector<float> best(num_ways, kNever);
  for (size_t way = 0; way < num_ways; ++way) {
    GLIM_ASSIGN(const float first, measure(way, 1));  // also loads its code
    if (first == kNever) continue;
    GLIM_ASSIGN(best[way], measure(way, 1));
  }
  const float limit = static_cast<float>(kFinalists) * *std::min_element(best.begin(), best.end());
  std::vector<size_t> finalists;
  for (size_t way = 0; way < num_ways; ++way) {
    if (best[way] <= limit && best[way] < kNever) finalists.push_back(way);
  }
  if (finalists.empty()) return size_t{0};
  for (int round = 0; round < kRounds; ++round) {
    for (const size_t way : finalists) {
      const int count = std::clamp(static_cast<int>(kLeastMilliseconds / std::max(best[way], 1e-3F)), 1, 50);
      GLIM_ASSIGN(const float time, measure(way, count));
      best[way] = round == 0 ? time : std::min(best[way], time);
    }
  }
  float fastest = kNever;
  for (const size_t way : finalists) fastest = std::min(fastest, best[way]);
  for (const size_t way : finalists) {
    if (best[way] <= static_cast<float>(kWithin) * fastest) return way;
  }
  return finalists.front();
}

}  // namespace glim
