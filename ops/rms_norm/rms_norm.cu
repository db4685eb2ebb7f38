// y = x r w', r = 1 / sqrt(mean(x^2) + eps), w' = offset + w, over each row or over groups of n columns; and its cotangents.
// Accumulation rule: a thread sums every blockDim-th element in f32 (f64 in f64 runs), a block adds its threads in f64 in a fixed
// order. ct_weight: a block takes kCudaRowsPerChunk rows and leaves their sums in the workspace; a second kernel adds the chunks in a
// fixed order in f64. No atomics: the same bits every time.
#include "ops/device/device.cuh"
#include "ops/rms_norm/rms_norm_attrs.h"

namespace glim::cuda {
namespace {

constexpr int kNormThreads = 256, kVjpThreads = 512;

// Every thread gets it.
template <class T>
__device__ Accumulate<T> reciprocal_rms(const T* x, int64_t n, double eps) {
  Accumulate<T> squares = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) squares += widen(x[i]) * widen(x[i]);
  const double sum = block_sum<double>(squares);
  return static_cast<Accumulate<T>>(1.0 / sqrt(sum / static_cast<double>(n) + eps));
}

// One block per group. out may lie on in: a thread writes where only it reads, after the sum.
template <class T>
__global__ void __launch_bounds__(kNormThreads)
    norm_groups(Rows<const T> in, const T* weight, Rows<T> out, int64_t groups, int64_t n, double eps, Accumulate<T> offset) {
  using A = Accumulate<T>;
  const int64_t row = blockIdx.x / groups, first = blockIdx.x % groups * n;
  const T* x = in[row] + first;
  T* y = out[row] + first;
  const A r = reciprocal_rms(x, n, eps);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const A w = weight == nullptr ? A(1) : offset + widen(weight[i]);
    y[i] = narrow<T>(widen(x[i]) * r * w);
  }
}

// Block (c, g): rows of chunk c, groups g, g + gridDim.y, ... ct_in may lie on ct. `partials` [chunks, n] is null without a weight;
// with one, gridDim.y is 1, so that a block sees every group of its rows.
template <class T>
__global__ void __launch_bounds__(kVjpThreads)
    norm_vjp_chunks(Rows<const T> in, const T* weight, Rows<const T> ct, Rows<T> ct_in, Accumulate<T>* partials, int64_t rows,
                    int64_t groups, int64_t n, double eps, Accumulate<T> offset) {
  using A = Accumulate<T>;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * ops::kCudaRowsPerChunk;
  const int64_t end = begin + ops::kCudaRowsPerChunk < rows ? begin + ops::kCudaRowsPerChunk : rows;
  A* const sums = partials == nullptr ? nullptr : partials + static_cast<int64_t>(blockIdx.x) * n;
  bool is_first = true;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t group = blockIdx.y; group < groups; group += gridDim.y) {
      const T *x = in[row] + group * n, *c = ct[row] + group * n;
      T* const out = ct_in[row] + group * n;
      const A r = reciprocal_rms(x, n, eps);
      A dot = 0;
      for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        const A w = weight == nullptr ? A(1) : offset + widen(weight[i]);
        dot += widen(c[i]) * w * (widen(x[i]) * r);
      }
      const A mean = static_cast<A>(block_sum<double>(dot) / static_cast<double>(n));
      for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        const A w = weight == nullptr ? A(1) : offset + widen(weight[i]), normed = widen(x[i]) * r, cotangent = widen(c[i]);
        if (sums != nullptr) sums[i] = is_first ? cotangent * normed : sums[i] + cotangent * normed;
        out[i] = narrow<T>(r * (cotangent * w - normed * mean));
      }
      is_first = false;
    }
  }
}

constexpr int kLanes = 8;

// Block of 32 columns x 8 lanes: lane l adds chunks l, l + 8, ...; then the lanes are added in order.
template <class T>
__global__ void add_chunks(const Accumulate<T>* partials, int64_t chunks, int64_t n, T* out) {
  __shared__ double lanes[kLanes][kWarp];
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  double sum = 0;
  if (i < n) {
    for (int64_t chunk = threadIdx.y; chunk < chunks; chunk += kLanes) sum += static_cast<double>(partials[chunk * n + i]);
  }
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || i >= n) return;
  for (int lane = 1; lane < kLanes; ++lane) sum += lanes[lane][threadIdx.x];
  out[i] = narrow<T>(static_cast<Accumulate<T>>(sum));
}

}  // namespace

void rms_norm(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto attrs = k.attrs<ops::RmsNormAttrs>();
    const int64_t rows = k.out[0].type.shape[0], width = k.out[0].type.shape[1], n = attrs.group > 0 ? attrs.group : width;
    if (rows == 0 || width == 0) return;
    const auto blocks = static_cast<unsigned>(rows * (width / n));
    norm_groups<T><<<blocks, threads_for(n, kNormThreads), 0, stream(k)>>>(rows_of<const T>(k.in[0]), k.in[1].as<T>(), rows_of<T>(k.out[0]),
                                                                           width / n, n, attrs.eps,
                                                                           static_cast<Accumulate<T>>(attrs.weight_offset));
  });
}

void rms_norm_vjp(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto attrs = k.attrs<ops::RmsNormAttrs>();
    const int64_t rows = k.out[0].type.shape[0], width = k.out[0].type.shape[1], n = attrs.group > 0 ? attrs.group : width;
    const T* weight = k.in[1].as<T>();
    auto* partials = weight == nullptr ? nullptr : reinterpret_cast<Accumulate<T>*>(k.workspace.data());
    const int64_t chunks = width == 0 ? 0 : (rows + ops::kCudaRowsPerChunk - 1) / ops::kCudaRowsPerChunk;
    if (chunks > 0) {
      const int64_t groups = width / n;
      const dim3 blocks(static_cast<unsigned>(chunks), weight == nullptr ? static_cast<unsigned>(std::min<int64_t>(groups, 65535)) : 1U);
      norm_vjp_chunks<T><<<blocks, threads_for(n, kVjpThreads), 0, stream(k)>>>(
          rows_of<const T>(k.in[0]), weight, rows_of<const T>(k.in[2]), rows_of<T>(k.out[0]), partials, rows, groups, n, attrs.eps,
          static_cast<Accumulate<T>>(attrs.weight_offset));
    }
    if (weight == nullptr || n == 0) return;
    const auto blocks = static_cast<unsigned>((n + kWarp - 1) / kWarp);
    add_chunks<T><<<blocks, dim3(kWarp, kLanes), 0, stream(k)>>>(partials, chunks, n, k.out[1].as<T>());
  });
}

}  // namespace glim::cuda
