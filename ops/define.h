#pragma once
// The vocabulary that op definitions are written in: checks for infer, costs, memory facts, and emission by name.
#include <fmt/format.h>

#include <initializer_list>
#include <string_view>
#include <vector>

#include "engine/graph.h"
#include "engine/op.h"

// In an infer function: return a user error unless the condition holds.
#define GLIM_EXPECT(condition, ...) \
  if (!(condition)) return ::glim::invalid_argument(fmt::format(__VA_ARGS__))

// The CUDA launcher of an op where this build has one: `.cuda = GLIM_CUDA_KERNEL(cuda::rms_norm)`.
#ifdef GLIM_HAS_CUDA
#define GLIM_CUDA_KERNEL(function) function
#else
#define GLIM_CUDA_KERNEL(function) nullptr
#endif

namespace glim::ops {

// ---- infer
inline Result<Types> same_as_first(const InferArgs& a) { return Types{*a.in[0]}; }

// ---- memory facts
inline AliasFact no_alias(const InferArgs&, uint16_t) { return {}; }
inline AliasFact over_first(const InferArgs&, uint16_t output) { return output == 0 ? AliasFact{AliasKind::kInPlace, 0} : AliasFact{}; }

// ---- costs
// Every operand read once, every output written once, no arithmetic.
inline Cost moved(const CostArgs& a) {
  Cost cost;
  for (const TensorType* type : a.in) cost.bytes_read += type != nullptr ? static_cast<double>(type->bytes()) : 0;
  for (const TensorType& type : a.out) cost.bytes_written += static_cast<double>(type.bytes());
  return cost;
}
template <int kFlopsPerElement>
Cost per_element(const CostArgs& a) {
  Cost cost = moved(a);
  cost.flops = kFlopsPerElement * static_cast<double>(a.out[0].shape.numel());
  return cost;
}

// ---- emission. In builders and vjp rules a failing emission is a bug of the rule, so it is checked, not returned.
template <class Attrs>
NodeId emit(Graph& g, std::string_view op, std::span<const ValueId> in, const Attrs& attrs) {
  const std::optional<OpId> id = g.table().find(op);
  GLIM_CHECK(id.has_value(), fmt::format("the op table has no '{}'", op));
  Result<NodeId> node = g.emit(*id, in, attrs);
  GLIM_CHECK(bool(node), node.error().to_string());
  return *node;
}
template <class Attrs>
NodeId emit(Graph& g, std::string_view op, std::initializer_list<ValueId> in, const Attrs& attrs) {
  return emit(g, op, std::span<const ValueId>(in.begin(), in.size()), attrs);
}
struct NoAttrs {};
inline NodeId emit(Graph& g, std::string_view op, std::initializer_list<ValueId> in) { return emit(g, op, in, NoAttrs{}); }
// The first output of an emitted node.
template <class Attrs>
ValueId emit_value(Graph& g, std::string_view op, std::initializer_list<ValueId> in, const Attrs& attrs) {
  return g.output(emit(g, op, in, attrs));
}
inline ValueId emit_value(Graph& g, std::string_view op, std::initializer_list<ValueId> in) { return g.output(emit(g, op, in)); }

}  // namespace glim::ops
