#include "ops/adamw/adamw.h"

#include <bit>
#include <cmath>

#include "ops/cpu_regions.h"

namespace glim::ops {

AdamwUpdate adamw(Graph& g, ValueId learning_rate, ValueId step, ValueId scale, ValueId finite, std::span<const AdamwTensor> tensors,
                  const AdamwAttrs& attrs) {
  std::vector<ValueId> in{learning_rate, step, scale, finite};
  for (const AdamwTensor& t : tensors) {
    in.push_back(t.param);
    if (attrs.has_master != 0) in.push_back(t.master);
    in.insert(in.end(), {t.gradient, t.m, t.v});
  }
  const NodeId node = emit(g, "adamw", std::span<const ValueId>(in), attrs);
  AdamwUpdate update{g.output(node), {}};
  uint32_t k = 1;
  for (size_t t = 0; t < tensors.size(); ++t) {
    AdamwTensor next;
    next.param = g.output(node, k++);
    if (attrs.has_master != 0) next.master = g.output(node, k++);
    next.m = g.output(node, k++);
    next.v = g.output(node, k++);
    update.tensors.push_back(next);
  }
  return update;
}

namespace {

constexpr OperandSpec kOperands[] = {{"learning_rate"}, {"step"}, {"scale"}, {"finite"}, {"tensors", false, true}};
constexpr std::string_view kOutputs[] = {"step", "tensors"};
constexpr AttrSpec kAttrs[] = {required(real_attr("beta1", 0, "decay of the first moment, in [0, 1)")),
                               required(real_attr("beta2", 0, "decay of the second moment, in [0, 1)")),
                               required(real_attr("eps", 0, "added to the root of the second moment, > 0")),
                               real_attr("weight_decay", 0, "of tensors of rank >= 2, times the learning rate"),
                               bool_attr("has_master", false, "every tensor has a master copy in the accumulation type"),
                               bool_attr("stochastic_rounding", false, "of bf16 parameters, which have no master copy then")};

// Operands and outputs of a tensor lie in the same order; only the gradient is no output.
struct Layout {
  size_t per_tensor_in, per_tensor_out, gradient;
  explicit Layout(bool has_master) : per_tensor_in(has_master ? 5 : 4), per_tensor_out(per_tensor_in - 1), gradient(has_master ? 2 : 1) {}
  static constexpr size_t kFirstIn = 4, kFirstOut = 1;
};

Result<Types> infer(const InferArgs& a) {
  const AdamwAttrs attrs = a.attrs<AdamwAttrs>();
  const Layout layout(attrs.has_master != 0);
  GLIM_EXPECT(attrs.beta1 >= 0 && attrs.beta1 < 1 && attrs.beta2 >= 0 && attrs.beta2 < 1,
              "beta1 and beta2 must be in [0, 1), not {} and {}", attrs.beta1, attrs.beta2);
  GLIM_EXPECT(attrs.eps > 0 && std::isfinite(attrs.eps), "eps must be positive, not {}", attrs.eps);
  GLIM_EXPECT(attrs.weight_decay >= 0 && std::isfinite(attrs.weight_decay), "weight_decay must not be negative, but is {}",
              attrs.weight_decay);
  GLIM_EXPECT(attrs.stochastic_rounding == 0 || attrs.has_master == 0, "a tensor with a master copy needs no stochastic_rounding");
  const TensorType scalar = *a.in[0];
  GLIM_EXPECT((scalar.dtype == DType::kF32 || scalar.dtype == DType::kF64) && scalar.shape == Shape{1},
              "learning_rate must be f32[1] or f64[1], not {}", to_string(scalar));
  GLIM_EXPECT(*a.in[1] == scalar && *a.in[2] == scalar, "step and scale must be {}, not {} and {}", to_string(scalar), to_string(*a.in[1]),
              to_string(*a.in[2]));
  const TensorType flag{DType::kI32, Shape{1}};
  GLIM_EXPECT(*a.in[3] == flag, "finite must be {}, not {}", to_string(flag), to_string(*a.in[3]));
  const size_t num_rest = a.in.size() - Layout::kFirstIn;
  GLIM_EXPECT(num_rest > 0 && num_rest % layout.per_tensor_in == 0, "needs {} operands per tensor, but has {} in all", layout.per_tensor_in,
              num_rest);
  Types out{scalar};
  for (size_t first = Layout::kFirstIn; first < a.in.size(); first += layout.per_tensor_in) {
    const TensorType& param = *a.in[first];
    GLIM_EXPECT(is_float(param.dtype) && accumulation_dtype(param.dtype) == scalar.dtype, "a parameter of {} cannot be updated in {}",
                to_string(param.dtype), to_string(scalar.dtype));
    const TensorType state{scalar.dtype, param.shape};
    for (size_t k = 0; k < layout.per_tensor_in; ++k) {
      GLIM_EXPECT(k == 0 || *a.in[first + k] == state, "operand {} must be {}, not {}", first + k, to_string(state),
                  to_string(*a.in[first + k]));
      if (k != layout.gradient) out.push_back(*a.in[first + k]);
    }
  }
  return out;
}

// The operand that output `output` overwrites.
uint16_t operand_of(const Layout& layout, size_t output) {
  if (output == 0) return 1;  // step
  const size_t tensor = (output - Layout::kFirstOut) / layout.per_tensor_out, k = (output - Layout::kFirstOut) % layout.per_tensor_out;
  return static_cast<uint16_t>(Layout::kFirstIn + tensor * layout.per_tensor_in + k + (k >= layout.gradient ? 1 : 0));
}

AliasFact alias(const InferArgs& a, uint16_t output) {
  return {AliasKind::kInPlace, operand_of(Layout(a.attrs<AdamwAttrs>().has_master != 0), output)};
}

// Factors of one step, in the type that the update is computed in.
template <class A>
struct Step {
  A scale, beta1, new1, beta2, new2, step_size, root_correction, eps, decay;
};

// What a tensor's parameters are rounded with.
struct Rounding {
  bool is_stochastic;
  uint64_t stream;
};

// T: type of the parameter. `master` equals `param` without master weights.
template <class T, class A, class Master>
void update_tensor(const KernelArgs& k, const Step<A>& s, std::span<const TensorView> in, std::span<const TensorView> out, bool has_master,
                   const Rounding& rounding) {
  const TensorView& param = out[0];
  const size_t g = has_master ? 2 : 1;
  const A decay = in[0].type.shape.rank >= 2 ? s.decay : A(1);
  cpu::for_each_run<Master, A, A, A, T, Master, A, A>(
      k.context,
      [&, s, decay](int64_t n, const Master* weight, const A* gradient, const A* m, const A* v, T* next_param, Master* next_weight,
                    A* next_m, A* next_v) {
        const auto next_of = [&](int64_t i) {
          const A scaled = gradient[i] * s.scale;
          const A first = s.beta1 * m[i] + s.new1 * scaled;
          const A second = s.beta2 * v[i] + s.new2 * scaled * scaled;
          next_m[i] = first;
          next_v[i] = second;
          return static_cast<A>(weight[i]) * decay - s.step_size * first / (std::sqrt(second) * s.root_correction + s.eps);
        };
        if constexpr (std::is_same_v<T, Bf16> && std::is_same_v<Master, Bf16>) {
          if (rounding.is_stochastic) {
            const int64_t offset = next_param - param.as<T>(), width = param.type.shape.last();
            const int64_t stride = param.type.shape.rank == 2 ? param.row_stride : width;
            const int64_t element = offset / stride * width + offset % stride;  // of the tensor, whatever its rows' stride
            for (int64_t i = 0; i < n; ++i)
              next_param[i].bits = round_stochastically(std::bit_cast<uint32_t>(next_of(i)), rounding_bits(rounding.stream, element + i));
            return;
          }
        }
        GLIM_ELEMENTWISE
        for (int64_t i = 0; i < n; ++i) {
          const A next = next_of(i);
          next_weight[i] = Master(next);
          next_param[i] = T(next);
        }
      },
      in[g - 1], in[g], in[g + 1], in[g + 2], out[0], out[g - 1], out[g], out[g + 1]);
}

template <class A>
void run(const KernelArgs& k) {
  const AdamwAttrs attrs = k.attrs<AdamwAttrs>();
  const bool has_master = attrs.has_master != 0;
  const Layout layout(has_master);
  if (*k.in[3].as<int32_t>() == 0) {
    for (size_t output = 0; output < k.out.size(); ++output) {
      cpu::copy_region(k.context, k.in[operand_of(layout, output)], {}, k.out[output], {}, k.out[output].type.shape);
    }
    return;
  }
  const double rate = static_cast<double>(*k.in[0].as<A>()), step = static_cast<double>(*k.in[1].as<A>()) + 1;
  *k.out[0].as<A>() = static_cast<A>(step);
  const Step<A> s{.scale = *k.in[2].as<A>(),
                  .beta1 = static_cast<A>(attrs.beta1),
                  .new1 = static_cast<A>(1 - attrs.beta1),
                  .beta2 = static_cast<A>(attrs.beta2),
                  .new2 = static_cast<A>(1 - attrs.beta2),
                  .step_size = static_cast<A>(rate / (1 - std::pow(attrs.beta1, step))),
                  .root_correction = static_cast<A>(1 / std::sqrt(1 - std::pow(attrs.beta2, step))),
                  .eps = static_cast<A>(attrs.eps),
                  .decay = static_cast<A>(1 - rate * attrs.weight_decay)};
  const size_t num_tensors = (k.in.size() - Layout::kFirstIn) / layout.per_tensor_in;
  for (size_t tensor = 0; tensor < num_tensors; ++tensor) {
    const auto in = k.in.subspan(Layout::kFirstIn + tensor * layout.per_tensor_in, layout.per_tensor_in);
    const auto out = k.out.subspan(Layout::kFirstOut + tensor * layout.per_tensor_out, layout.per_tensor_out);
    if (in[0].type.shape.numel() == 0) continue;
    const Rounding rounding{attrs.stochastic_rounding != 0, rounding_stream(static_cast<uint64_t>(step), tensor)};
    cpu::dispatch_float(in[0].type.dtype, [&](auto tag) {
      using T = typename decltype(tag)::Type;
      if constexpr (std::is_same_v<cpu::Accumulate<T>, A>) {
        if (has_master)
          update_tensor<T, A, A>(k, s, in, out, true, rounding);
        else
          update_tensor<T, A, T>(k, s, in, out, false, rounding);
      }
    });
  }
}

void cpu(const KernelArgs& k) { k.in[0].type.dtype == DType::kF64 ? run<double>(k) : run<float>(k); }

Cost cost(const CostArgs& a) {
  Cost cost = moved(a);
  for (size_t output = 1; output < a.out.size(); ++output) cost.flops += 5 * static_cast<double>(a.out[output].shape.numel());
  cost.workspace_bytes = kAdamwWorkspaceBytes;
  return cost;
}

std::vector<OpCase> cases() {
  const CaseInput scalar{{1}, Fill::kPositive, CaseDType::kAccumulation}, step{{1}, Fill::kOne, CaseDType::kAccumulation};
  const CaseInput finite{{1}, Fill::kOne, CaseDType::kI32}, skip{{1}, Fill::kZero, CaseDType::kI32};
  const auto build = [](std::vector<CaseInput> inputs, std::initializer_list<Shape> shapes, bool has_master) {
    for (const Shape& shape : shapes) {
      inputs.push_back({shape});
      if (has_master) inputs.push_back({shape, Fill::kNormal, CaseDType::kAccumulation});
      inputs.push_back({shape, Fill::kNormal, CaseDType::kAccumulation});
      inputs.push_back({shape, Fill::kNormal, CaseDType::kAccumulation});
      inputs.push_back({shape, Fill::kPositive, CaseDType::kAccumulation});
    }
    return inputs;
  };
  const AdamwAttrs plain{0.9, 0.95, 1e-8, 0.1, 0, 0}, master{0.9, 0.95, 1e-8, 0.1, 1, 0}, stochastic{0.9, 0.95, 1e-8, 0.1, 0, 1};
  return {{"plain", build({scalar, step, scalar, finite}, {{3, 5}, {7}}, false), to_words(plain)},
          {"master", build({scalar, step, scalar, finite}, {{3, 5}, {7}}, true), to_words(master)},
          {"many tasks", build({scalar, step, scalar, finite}, {{130, 257}, {5}}, true), to_words(master)},
          {"stochastic rounding", build({scalar, step, scalar, finite}, {{13, 22}, {7}}, false), to_words(stochastic)},
          {"skipped", build({scalar, step, scalar, skip}, {{3, 5}, {7}}, true), to_words(master)}};
}

}  // namespace

extern const OpDef kAdamw;
constexpr OpDef kAdamw{.name = "adamw",
                       .summary = "AdamW over all tensors; changes nothing, bit for bit, when finite is 0",
                       .operands = kOperands,
                       .outputs = kOutputs,
                       .attrs = kAttrs,
                       .diff = Diff::kNoVjp,
                       .infer = infer,
                       .cpu = cpu,
                       .cuda = GLIM_CUDA_KERNEL(cuda::adamw),
                       .cost = cost,
                       .memory = {alias},
                       .precision = Precision::kExact,
                       .shard = Shard::kElementwise,
                       .cases = cases};
static_assert(complete(kAdamw));

}  // namespace glim::ops
