// out = R f x r per head, r = 1 / sqrt(mean(x^2) + eps), R the rotation of rope; and ct_x = r (g - x r mean(g x r)), g = f R^T ct.
// A team of lanes of one warp takes kHeads heads of a row, one after another: it computes the sines of its pairs once for all of them.
// Each tensor crosses the memory bus once; where a head is longer than a team, what is read again after the sums is in the L1 cache.
// Frequencies and angles are rounded to the type that the run computes in, like on the CPU (see rope). Accumulation rule: a lane sums its
// pairs in f32 (f64 in f64 runs), a team adds its lanes in that type in a fixed order. Outputs may lie on ct (backward) or in (forward).
#include "ops/qk_norm/qk_norm_attrs.h"

#include "ops/device/math.cuh"

namespace glim::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kHeads = 8;  // of one team

// A pack of left halves, and the pack of right halves that they turn with.
template <int N, class T>
struct Halves {
  Pack<T, N> left, right;
  __device__ void read(const T* head, int64_t pair, int64_t half) {
    left = load<N>(head + pair);
    right = load<N>(head + pair + half);
  }
  __device__ void write(T* head, int64_t pair, int64_t half) const {
    store<N>(head + pair, left);
    store<N>(head + pair + half, right);
  }
};

// Sines and cosines of a pack of pairs; computed when another pack is asked for.
template <int N, class A>
struct Turn {
  const A* frequency;  // shared memory; null: no rotation
  A position;
  int64_t computed = -1;
  A sine[N], cosine[N];
  __device__ void to(int64_t pair) {
    if (pair == computed) return;
    computed = pair;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      sine[j] = 0;
      cosine[j] = 1;
      if (frequency != nullptr) sincos_of(position * frequency[pair + j], sine[j], cosine[j]);
    }
  }
};

template <class A>
__device__ A team_sum(A value, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffU, value, offset);
  return value;
}

template <class T>
struct Heads {
  Rows<const T> in, ct;  // ct: null in the forward pass
  const int32_t* positions;
  Rows<T> out;
  int64_t rows, num_heads, half;
  double over_dim, eps, theta;  // over_dim: 1 / head_dim
  Accumulate<T> factor;
  int lanes;  // of a team
};

template <int N, bool kBackward, class T>
__global__ void __launch_bounds__(kThreads) norm_heads(Heads<T> k) {
  using A = Accumulate<T>;
  __shared__ A frequency[ops::kMaxNormedHead / 2];
  const int64_t head_dim = 2 * k.half;
  if (k.positions != nullptr) {
    for (int64_t i = threadIdx.x; i < k.half; i += kThreads)
      frequency[i] = static_cast<A>(pow(k.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
    __syncthreads();
  }
  const int lane = static_cast<int>(threadIdx.x) % k.lanes, teams = kThreads / k.lanes;
  const int64_t start = static_cast<int64_t>(lane) * N, step = static_cast<int64_t>(k.lanes) * N;
  const int64_t teams_per_row = (k.num_heads + kHeads - 1) / kHeads, items = k.rows * teams_per_row;
  // As often in every team, which shuffles need.
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * teams; base < items; base += static_cast<int64_t>(gridDim.x) * teams) {
    const int64_t item = base + static_cast<int>(threadIdx.x) / k.lanes;
    const bool is_live = item < items;
    const int64_t row = is_live ? item / teams_per_row : 0, first = is_live ? item % teams_per_row * kHeads : 0;
    Turn<N, A> turn;
    turn.frequency = k.positions != nullptr ? frequency : nullptr;
    turn.position = k.positions != nullptr ? static_cast<A>(k.positions[row]) : A(0);
    for (int64_t h = 0; h < kHeads && h < k.num_heads; ++h) {
      const int64_t head = first + h, end = is_live && head < k.num_heads ? k.half : 0, at = end > 0 ? head * head_dim : 0;
      const T* const x = k.in[row] + at;
      const T* const ct = kBackward ? k.ct[row] + at : nullptr;
      Halves<N, T> of_x, of_ct;
      int64_t held = -1;
      A squares = 0, dot = 0;  // dot: of R^T ct and x
      A left[N], right[N];     // R^T ct
      const auto read = [&](int64_t pair) {
        if (pair == held) return;
        held = pair;
        of_x.read(x, pair, k.half);
        turn.to(pair);
        if constexpr (kBackward) {
          of_ct.read(ct, pair, k.half);
#pragma unroll
          for (int j = 0; j < N; ++j) {
            left[j] = widen(of_ct.left.at[j]) * turn.cosine[j] + widen(of_ct.right.at[j]) * turn.sine[j];
            right[j] = widen(of_ct.right.at[j]) * turn.cosine[j] - widen(of_ct.left.at[j]) * turn.sine[j];
          }
        }
      };
      for (int64_t pair = start; pair < end; pair += step) {
        read(pair);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const A a = widen(of_x.left.at[j]), b = widen(of_x.right.at[j]);
          squares += a * a + b * b;
          if constexpr (kBackward) dot += left[j] * a + right[j] * b;
        }
      }
      const A r = 1 / sqrt_of(static_cast<A>(static_cast<double>(team_sum(squares, k.lanes)) * k.over_dim + k.eps));
      const A by = k.factor * r;
      A mean = 0;  // of R^T ct x r
      if constexpr (kBackward) mean = static_cast<A>(static_cast<double>(team_sum(dot, k.lanes)) * static_cast<double>(r) * k.over_dim);
      for (int64_t pair = start; pair < end; pair += step) {
        read(pair);
        Halves<N, T> to;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const A a = widen(of_x.left.at[j]), b = widen(of_x.right.at[j]);
          if constexpr (kBackward) {
            to.left.at[j] = narrow<T>(by * (left[j] - a * r * mean));
            to.right.at[j] = narrow<T>(by * (right[j] - b * r * mean));
          } else {
            to.left.at[j] = narrow<T>(a * by * turn.cosine[j] - b * by * turn.sine[j]);
            to.right.at[j] = narrow<T>(b * by * turn.cosine[j] + a * by * turn.sine[j]);
          }
        }
        to.write(k.out[row] + at, pair, k.half);
      }
    }
  }
}

template <bool kBackward>
void run(const KernelArgs& k) {
  const auto attrs = k.attrs<ops::QkNormAttrs>();
  const int64_t rows = k.out[0].type.shape[0], width = k.out[0].type.shape[1];
  if (rows == 0 || width == 0) return;
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    Heads<T> heads{.in = rows_of<const T>(k.in[0]),
                   .ct = kBackward ? rows_of<const T>(k.in[2]) : Rows<const T>{},
                   .positions = k.in[1].as<int32_t>(),
                   .out = rows_of<T>(k.out[0]),
                   .rows = rows,
                   .num_heads = width / attrs.head_dim,
                   .half = attrs.head_dim / 2,
                   .over_dim = 1.0 / static_cast<double>(attrs.head_dim),
                   .eps = attrs.eps,
                   .theta = attrs.theta,
                   .factor = static_cast<Accumulate<T>>(attrs.factor),
                   .lanes = 1};
    const auto launch = [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      while (heads.lanes < kWarp && heads.lanes * N < heads.half) heads.lanes *= 2;
      const int64_t items = rows * ((heads.num_heads + kHeads - 1) / kHeads), teams = kThreads / heads.lanes;
      const int64_t blocks = std::min<int64_t>((items + teams - 1) / teams, 132 * 16);
      norm_heads<N, kBackward, T><<<static_cast<unsigned>(blocks), kThreads, 0, stream(k)>>>(heads);
    };
    constexpr int N = kPackOf<T>;
    const auto packed = [&](const auto& each) { return takes_packs(each, rows, N); };
    if (heads.half % N == 0 && packed(heads.in) && packed(heads.ct) && packed(heads.out))
      launch(std::integral_constant<int, N>{});
    else
      launch(std::integral_constant<int, 1>{});
  });
}

}  // namespace

void qk_norm(const KernelArgs& k) { run<false>(k); }
void qk_norm_vjp(const KernelArgs& k) { run<true>(k); }

}  // namespace glim::cuda
