#include "ops/attention/attention.h"

#include <cmath>

#include "ops/kernel_context.h"

namespace glim::ops {
namespace {

constexpr OperandSpec kOperands[] = {{"q"}, {"k"}, {"v"}, {"segments"}};
constexpr std::string_view kOutputs[] = {"out", "lse"};
constexpr AttrSpec kAttrs[] = {required(integer_attr("num_heads", 0, "query heads")),
                               required(integer_attr("num_kv_heads", 0, "key-value heads")),
                               bool_attr("causal", true, "a query sees no later key"),
                               integer_attr("window", 0, "how many keys a query sees, itself included; 0 = all"),
                               required(real_attr("scale", 1, "factor of the scores, usually head size ^ -0.5"))};

Result<Types> infer(const InferArgs& a) {
  const auto attrs = a.attrs<AttentionAttrs>();
  const TensorType &q = *a.in[0], &k = *a.in[1], &v = *a.in[2], &segments = *a.in[3];
  GLIM_EXPECT(is_float(q.dtype) && q.shape.rank == 2, "q must be floating-point of rank 2, not {}", to_string(q));
  GLIM_EXPECT(attrs.num_heads > 0 && attrs.num_kv_heads > 0 && attrs.num_heads % attrs.num_kv_heads == 0,
              "num_heads ({}) must be a positive multiple of num_kv_heads ({})", attrs.num_heads, attrs.num_kv_heads);
  GLIM_EXPECT(q.shape[1] % attrs.num_heads == 0 && q.shape[1] > 0, "the {} columns of q are not {} heads", q.shape[1], attrs.num_heads);
  const int64_t head_size = q.shape[1] / attrs.num_heads;
  GLIM_EXPECT(head_size <= kMaxHeadSize, "a head size of {} is over the limit of {}", head_size, kMaxHeadSize);
  const TensorType kv{q.dtype, {q.shape[0], attrs.num_kv_heads * head_size}};
  GLIM_EXPECT(k == kv && v == kv, "k and v must be {}, not {} and {}", to_string(kv), to_string(k), to_string(v));
  GLIM_EXPECT(segments.dtype == DType::kI32 && segments.shape.rank == 1 && segments.shape[0] >= 1, "segments must be i32[G+1], not {}",
              to_string(segments));
  GLIM_EXPECT(attrs.window >= 0, "window must not be negative, not {}", attrs.window);
  GLIM_EXPECT(std::isfinite(attrs.scale), "scale must be finite");
  return Types{q, {accumulation_dtype(q.dtype), {q.shape[0], attrs.num_heads}}};
}

// p = softmax(scale q k^T), out = p v;  ct_v = p^T ct, ds = p * (ct v^T - rowsum(out * ct)) scale, ct_q = ds k, ct_k = ds^T q
std::vector<ValueId> vjp(Graph& g, const VjpArgs& a) {
  GLIM_CHECK(!a.cotangents[1].valid(), "attention: lse is a saved primal; it has no gradient");
  if (!a.cotangents[0].valid()) return {{}, {}, {}, {}};
  const NodeId n =
      emit(g, "attention_vjp", {a.in[0], a.in[1], a.in[2], a.in[3], a.out[0], a.out[1], a.cotangents[0]}, a.attrs<AttentionAttrs>());
  return {g.output(n, 0), g.output(n, 1), g.output(n, 2), {}};
}

// Pairs of query and visible key, for one segment of all rows (lengths are data): a bound that is exact for one document.
double num_pairs(int64_t rows, const AttentionAttrs& attrs) {
  const double t = static_cast<double>(rows), w = attrs.window > 0 ? std::min(static_cast<double>(attrs.window), t) : t;
  const double causal = w * t - w * (w - 1) / 2;
  return attrs.causal ? causal : attrs.window > 0 ? 2 * causal - t : t * t;
}

Cost cost(const CostArgs& a) {
  Cost cost = moved(a);
  cost.flops = 4.0 * static_cast<double>(a.in[0]->shape[1]) * num_pairs(a.in[0]->shape[0], a.attrs<AttentionAttrs>());
  return cost;
}

struct Geometry {
  std::string_view name;
  int64_t rows, head_size, segments;
  AttentionAttrs attrs;
};
constexpr Geometry kGeometries[] = {{"causal", 12, 4, 3, {2, 2, 1, 0, 0.5}},
                                    {"grouped 4:1, window", 17, 8, 2, {4, 1, 1, 3, 0.35}},
                                    {"two groups of 4", 9, 12, 1, {8, 2, 1, 0, 0.29}},
                                    {"not causal", 14, 6, 4, {3, 3, 0, 0, 0.4}},
                                    {"not causal, window", 14, 4, 2, {2, 1, 0, 4, 0.5}},
                                    {"window of one", 7, 4, 2, {2, 2, 1, 1, 0.5}},
                                    {"window above the segment", 11, 5, 2, {1, 1, 1, 40, 0.45}},
                                    {"several tiles", 150, 8, 2, {2, 1, 1, 70, 0.35}},
                                    {"head of 96", 10, 96, 2, {1, 1, 1, 0, 0.1}}};

std::vector<CaseInput> inputs(const Geometry& c) {
  const CaseInput q{{c.rows, c.attrs.num_heads * c.head_size}}, kv{{c.rows, c.attrs.num_kv_heads * c.head_size}};
  return {q, kv, kv, {{c.segments + 1}, Fill::kSegments, CaseDType::kI32, c.rows}};
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const Geometry& c : kGeometries) all.push_back({std::string(c.name), inputs(c), to_words(c.attrs)});
  return all;
}

// ---- attention_vjp
constexpr OperandSpec kVjpOperands[] = {{"q"}, {"k"}, {"v"}, {"segments"}, {"out"}, {"lse"}, {"ct"}};
constexpr std::string_view kVjpOutputs[] = {"ct_q", "ct_k", "ct_v"};

Result<Types> vjp_infer(const InferArgs& a) {
  GLIM_ASSIGN(const Types forward, infer({a.in.first(4), a.attr_words}));
  GLIM_EXPECT(*a.in[4] == forward[0] && *a.in[6] == forward[0], "out and ct must be {}, not {} and {}", to_string(forward[0]),
              to_string(*a.in[4]), to_string(*a.in[6]));
  GLIM_EXPECT(*a.in[5] == forward[1], "lse must be {}, not {}", to_string(forward[1]), to_string(*a.in[5]));
  return Types{*a.in[0], *a.in[1], *a.in[2]};
}

// The five products of the law above (the kernels take seven).
Cost vjp_cost(const CostArgs& a) {
  const auto attrs = a.attrs<AttentionAttrs>();
  const int64_t rows = a.in[0]->shape[0], width = a.in[0]->shape[1];
  const DType dtype = a.in[0]->dtype;
  Cost cost = moved(a);
  cost.flops = 10.0 * static_cast<double>(width) * num_pairs(rows, attrs);
  cost.workspace_bytes =
      cuda_vjp_workspace(rows, width / attrs.num_heads, attrs, size_of(accumulation_dtype(dtype)), dtype == DType::kBF16).bytes();
  return cost;
}

std::vector<OpCase> vjp_cases() {
  std::vector<OpCase> all;
  for (const Geometry& c : kGeometries) {
    std::vector<CaseInput> in = inputs(c);
    in.push_back(in[0]);
    in.push_back({{c.rows, c.attrs.num_heads}, Fill::kPositive, CaseDType::kAccumulation});
    in.push_back(in[0]);
    all.push_back({std::string(c.name), std::move(in), to_words(c.attrs)});
  }
  return all;
}

}  // namespace

extern const OpDef kAttention, kAttentionVjp;
constexpr OpDef kAttention{.name = "attention",
                           .summary = "softmax(scale * q k^T) v per segment and head, causal and windowed",
                           .operands = kOperands,
                           .outputs = kOutputs,
                           .attrs = kAttrs,
                           .diff = Diff::kHasVjp,
                           .infer = infer,
                           .vjp = vjp,
                           .cpu = attention_cpu,
                           .cuda = GLIM_CUDA_KERNEL(cuda::attention),
                           .cost = cost,
                           .memory = {no_alias},
                           .precision = Precision::kFollows,
                           .shard = Shard::kHeads,
                           .cases = cases};
static_assert(complete(kAttention));

constexpr OpDef kAttentionVjp{.name = "attention_vjp",
                              .summary = "cotangents of q, k and v; recomputes the scores",
                              .operands = kVjpOperands,
                              .outputs = kVjpOutputs,
                              .attrs = kAttrs,
                              .diff = Diff::kNoVjp,
                              .infer = vjp_infer,
                              .cpu = attention_vjp_cpu,
                              .cuda = GLIM_CUDA_KERNEL(cuda::attention_vjp),
                              .cost = vjp_cost,
                              .memory = {no_alias},
                              .precision = Precision::kFollows,
                              .shard = Shard::kHeads,
                              .cases = vjp_cases};
static_assert(complete(kAttentionVjp));

}  // namespace glim::ops
