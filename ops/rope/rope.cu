// Rotates elements i and i + d/2 of each head by position * theta^(-2i/d).
// Frequencies and angles are rounded to the type that the run computes in, like on the CPU: at position 100,000 the rounding of f32 is
// part of the model. Sines are the accurate ones for any angle. A thread computes the angles of a pack of pairs once and turns them in
// kHeads heads; out may lie on in: a thread writes where only it reads.
#include "ops/rope/rope_attrs.h"

#include "ops/device/math.cuh"

namespace glim::cuda {
namespace {

constexpr int64_t kHeads = 8;  // of one thread

template <class A>
__global__ void rope_frequencies(double theta, int64_t head_dim, A* frequency) {  // [head_dim / 2]
  for (int64_t i = threadIdx.x; i < head_dim / 2; i += blockDim.x)
    frequency[i] = static_cast<A>(pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
}

// Threads are x along the packs of pairs of a head and y along rows; blockIdx.z is a group of heads.
template <int N, class T>
__global__ void turn_rows(Rows<const T> in, const int32_t* positions, const Accumulate<T>* frequency, Rows<T> out, int64_t rows,
                          int64_t num_heads, int64_t half, bool inverse) {
  using A = Accumulate<T>;
  const int64_t begin = static_cast<int64_t>(blockIdx.z) * kHeads, end = begin + kHeads < num_heads ? begin + kHeads : num_heads;
  for (int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows;
       row += static_cast<int64_t>(gridDim.y) * blockDim.y) {
    for (int64_t pair = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N; pair < half;
         pair += static_cast<int64_t>(gridDim.x) * blockDim.x * N) {
      A sine[N], cosine[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        sincos_of(static_cast<A>(positions[row]) * frequency[pair + i], sine[i], cosine[i]);
        if (inverse) sine[i] = -sine[i];
      }
#pragma unroll 4
      for (int64_t head = begin; head < end; ++head) {
        const int64_t at = head * 2 * half + pair;
        const Pack<T, N> left = load<N>(in[row] + at), right = load<N>(in[row] + at + half);
        Pack<T, N> turned_left, turned_right;
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const A a = widen(left.at[i]), b = widen(right.at[i]);
          turned_left.at[i] = narrow<T>(a * cosine[i] - b * sine[i]);
          turned_right.at[i] = narrow<T>(b * cosine[i] + a * sine[i]);
        }
        store<N>(out[row] + at, turned_left);
        store<N>(out[row] + at + half, turned_right);
      }
    }
  }
}

}  // namespace

void rope(const KernelArgs& k) {
  const auto attrs = k.attrs<ops::RopeAttrs>();
  const int64_t rows = k.out[0].type.shape[0], width = k.out[0].type.shape[1], half = attrs.head_dim / 2;
  if (rows == 0 || width == 0) return;
  const int64_t num_heads = width / attrs.head_dim;
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    auto* const frequency = reinterpret_cast<Accumulate<T>*>(k.workspace.data());
    rope_frequencies<<<1, 128, 0, stream(k)>>>(attrs.theta, attrs.head_dim, frequency);
    const Rows<const T> in = rows_of<const T>(k.in[0]);
    const Rows<T> out = rows_of<T>(k.out[0]);
    const auto* const positions = k.in[1].as<int32_t>();
    const auto launch = [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      RowGrid grid(rows, half / N);
      grid.blocks.z = static_cast<unsigned>((num_heads + kHeads - 1) / kHeads);
      turn_rows<N, T>
          <<<grid.blocks, grid.threads, 0, stream(k)>>>(in, positions, frequency, out, rows, num_heads, half, attrs.inverse != 0);
    };
    constexpr int N = kPackOf<T>;
    if (half % N == 0 && takes_packs(in, rows, N) && takes_packs(out, rows, N))
      launch(std::integral_constant<int, N>{});
    else
      launch(std::integral_constant<int, 1>{});
  });
}

}  // namespace glim::cuda
