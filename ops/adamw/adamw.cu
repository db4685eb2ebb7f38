// AdamW over all tensors in one launch (one per some 300 tensors), in f32 (f64 in f64 runs). A first thread takes the factors of the step
// from device scalars into the workspace and counts the step; with finite == 0 nothing is written anywhere after that, step count
// included. The plan makes every output its operand's buffer; where a caller without a plan passes two, operands are copied first.
#include "ops/adamw/adamw_attrs.h"
#include "ops/device/copy_view.h"
#include "ops/device/math.cuh"
#include "ops/device/tensor_list.cuh"

namespace glim::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kTile = 4096;  // elements of one block

struct Updated {
  void* param;
  void* master;  // null without master weights
  const void* gradient;
  void *m, *v;
  int64_t rows, width;  // a tensor whose five parts are all contiguous is one row
  int64_t param_stride, master_stride, gradient_stride, m_stride, v_stride;
  int64_t first_tile;
  uint64_t number;  // among the tensors of the node
  int32_t tiles_per_row;
  bool is_decayed, takes_packs, is_bf16;
};

// Factors of one step, in the type that the update is computed in.
template <class A>
struct Step {
  A scale, beta1, new1, beta2, new2, step_size, root_correction, eps, decay;
  uint64_t count;  // this update's number, from 1
  int32_t finite;
};
static_assert(sizeof(Step<double>) <= ops::kAdamwWorkspaceBytes);

template <class A>
__global__ void begin_step(const A* learning_rate, const A* step, const A* scale, const int32_t* finite, ops::AdamwAttrs attrs,
                           A* next_step, Step<A>* factors) {
  factors->finite = *finite;
  if (*finite == 0) return;
  const double rate = static_cast<double>(*learning_rate), count = static_cast<double>(*step) + 1;
  *next_step = static_cast<A>(count);
  factors->count = static_cast<uint64_t>(count);
  factors->scale = *scale;
  factors->beta1 = static_cast<A>(attrs.beta1);
  factors->new1 = static_cast<A>(1 - attrs.beta1);
  factors->beta2 = static_cast<A>(attrs.beta2);
  factors->new2 = static_cast<A>(1 - attrs.beta2);
  factors->step_size = static_cast<A>(rate / (1 - pow(attrs.beta1, count)));
  factors->root_correction = static_cast<A>(1 / sqrt(1 - pow(attrs.beta2, count)));
  factors->eps = static_cast<A>(attrs.eps);
  factors->decay = static_cast<A>(1 - rate * attrs.weight_decay);
}

// T: type of the parameter. The weight is the master where there is one. `element` is the pack's first one in its tensor.
template <int N, bool kStochastic, class T, class A>
__device__ void update_pack(const Step<A>& s, A decay, uint64_t stream, int64_t element, T* param, A* master, const A* gradient, A* m,
                            A* v) {
  const Pack<A, N> g = load<N>(gradient);
  Pack<A, N> first = load<N>(m), second = load<N>(v), weight;
  Pack<T, N> rounded;
  if (master != nullptr) {
    weight = load<N>(master);
  } else {
    rounded = load<N>(param);
#pragma unroll
    for (int i = 0; i < N; ++i) weight.at[i] = static_cast<A>(widen(rounded.at[i]));
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const A scaled = g.at[i] * s.scale;
    first.at[i] = s.beta1 * first.at[i] + s.new1 * scaled;
    second.at[i] = s.beta2 * second.at[i] + s.new2 * scaled * scaled;
    weight.at[i] = weight.at[i] * decay - s.step_size * first.at[i] / (sqrt_of(second.at[i]) * s.root_correction + s.eps);
    if constexpr (kStochastic && std::is_same_v<T, __nv_bfloat16>)
      rounded.at[i] =
          __ushort_as_bfloat16(ops::round_stochastically(__float_as_uint(weight.at[i]), ops::rounding_bits(stream, element + i)));
    else
      rounded.at[i] = narrow<T>(weight.at[i]);
  }
  store<N>(m, first);
  store<N>(v, second);
  if (master != nullptr) store<N>(master, weight);
  store<N>(param, rounded);
}

template <bool kStochastic, class T, class A>
__device__ void update_tile(const Step<A>& s, const Updated& tensor, int64_t tile) {
  const int64_t row = tile / tensor.tiles_per_row, column = tile % tensor.tiles_per_row * kTile;
  const int64_t length = tensor.width - column < kTile ? tensor.width - column : kTile;
  T* const param = static_cast<T*>(tensor.param) + row * tensor.param_stride + column;
  A* const master = tensor.master == nullptr ? nullptr : static_cast<A*>(tensor.master) + row * tensor.master_stride + column;
  const A* const gradient = static_cast<const A*>(tensor.gradient) + row * tensor.gradient_stride + column;
  A *const m = static_cast<A*>(tensor.m) + row * tensor.m_stride + column, *const v =
                                                                               static_cast<A*>(tensor.v) + row * tensor.v_stride + column;
  const A decay = tensor.is_decayed ? s.decay : A(1);
  const uint64_t stream = ops::rounding_stream(s.count, tensor.number);
  const int64_t element = row * tensor.width + column;
  constexpr int N = 16 / sizeof(A);
  const int64_t whole = tensor.takes_packs ? length / N * N : 0;
  const auto at = [&](auto* base, int64_t i) { return base == nullptr ? nullptr : base + i; };
#pragma unroll 2
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < whole; i += kThreads * N)
    update_pack<N, kStochastic>(s, decay, stream, element + i, param + i, at(master, i), gradient + i, m + i, v + i);
  for (int64_t i = whole + threadIdx.x; i < length; i += kThreads)
    update_pack<1, kStochastic>(s, decay, stream, element + i, param + i, at(master, i), gradient + i, m + i, v + i);
}

// One block per tile, from the first tile of the list on.
template <bool kStochastic, class A>
__global__ void __launch_bounds__(kThreads) update_tiles(const __grid_constant__ TensorList<Updated> list, const Step<A>* factors) {
  const Step<A> s = *factors;
  if (s.finite == 0) return;
  const int64_t at = list.entries[0].first_tile + blockIdx.x;
  const Updated& tensor = list.of_tile(at);
  if constexpr (std::is_same_v<A, float>) {
    if (tensor.is_bf16) return update_tile<kStochastic, __nv_bfloat16>(s, tensor, at - tensor.first_tile);
  }
  update_tile<false, A>(s, tensor, at - tensor.first_tile);
}

// in: param, [master,] gradient, m, v; out: param, [master,] m, v, which hold what in does.
Updated updated(std::span<const TensorView> in, std::span<const TensorView> out, bool has_master, int64_t first_tile, uint64_t number) {
  const size_t g = has_master ? 2 : 1;
  const TensorView &param = out[0], &gradient = in[g], &m = out[g], &v = out[g + 1];
  const TensorView master = has_master ? out[1] : TensorView{};
  const Shape& shape = param.type.shape;
  const bool is_flat =
      param.contiguous() && gradient.contiguous() && m.contiguous() && v.contiguous() && (!has_master || master.contiguous());
  Updated tensor{param.data,
                 master.data,
                 gradient.data,
                 m.data,
                 v.data,
                 1,
                 shape.numel(),
                 0,
                 0,
                 0,
                 0,
                 0,
                 first_tile,
                 number,
                 0,
                 shape.rank >= 2,
                 true,
                 param.type.dtype == DType::kBF16};
  if (!is_flat) {
    tensor.rows = shape[0];
    tensor.width = shape[1];
    tensor.param_stride = param.row_stride;
    tensor.master_stride = master.row_stride;
    tensor.gradient_stride = gradient.row_stride;
    tensor.m_stride = m.row_stride;
    tensor.v_stride = v.row_stride;
  }
  tensor.tiles_per_row = static_cast<int32_t>((tensor.width + kTile - 1) / kTile);
  const int64_t n = 16 / static_cast<int64_t>(size_of(m.type.dtype));
  const auto is_aligned = [&](const TensorView& view, int64_t stride) {
    return reinterpret_cast<uintptr_t>(view.data) % (static_cast<size_t>(n) * size_of(view.type.dtype)) == 0 && stride % n == 0;
  };
  tensor.takes_packs = is_aligned(param, tensor.param_stride) && is_aligned(gradient, tensor.gradient_stride) &&
                       is_aligned(m, tensor.m_stride) && is_aligned(v, tensor.v_stride) &&
                       (!has_master || is_aligned(master, tensor.master_stride));
  return tensor;
}

template <class A>
void run(const KernelArgs& k) {
  const auto attrs = k.attrs<ops::AdamwAttrs>();
  const bool has_master = attrs.has_master != 0;
  const size_t per_tensor_in = has_master ? 5 : 4, per_tensor_out = per_tensor_in - 1, gradient = has_master ? 2 : 1;
  auto* const factors = reinterpret_cast<Step<A>*>(k.workspace.data());
  copy_view(k.in[1], k.out[0], k.context.stream());
  begin_step<A>
      <<<1, 1, 0, stream(k)>>>(k.in[0].as<A>(), k.in[1].as<A>(), k.in[2].as<A>(), k.in[3].as<int32_t>(), attrs, k.out[0].as<A>(), factors);
  TensorList<Updated> list;
  int64_t tiles = 0, launched = 0;
  const auto launch = [&] {
    const auto blocks = static_cast<unsigned>(tiles - launched);
    if (list.count > 0 && attrs.stochastic_rounding != 0)
      update_tiles<true, A><<<blocks, kThreads, 0, stream(k)>>>(list, factors);
    else if (list.count > 0)
      update_tiles<false, A><<<blocks, kThreads, 0, stream(k)>>>(list, factors);
    list.count = 0;
    launched = tiles;
  };
  const size_t num_tensors = (k.in.size() - 4) / per_tensor_in;
  for (size_t tensor = 0; tensor < num_tensors; ++tensor) {
    const auto in = k.in.subspan(4 + tensor * per_tensor_in, per_tensor_in);
    const auto out = k.out.subspan(1 + tensor * per_tensor_out, per_tensor_out);
    for (size_t part = 0; part < per_tensor_in; ++part) {
      if (part != gradient) copy_view(in[part], out[part < gradient ? part : part - 1], k.context.stream());
    }
    if (in[0].type.shape.numel() == 0) continue;
    const Updated entry = updated(in, out, has_master, tiles, tensor);
    list.entries[list.count++] = entry;
    tiles += entry.rows * entry.tiles_per_row;
    if (list.count == TensorList<Updated>::kCapacity) launch();
  }
  launch();
}

}  // namespace

void adamw(const KernelArgs& k) { k.in[0].type.dtype == DType::kF64 ? run<double>(k) : run<float>(k); }

}  // namespace glim::cuda
