#include "runtime/api/registered_op.h"

#include <fmt/format.h>

#include <array>
#include <set>
#include <stdexcept>

#include "engine/suggest.h"
#include "ops/define.h"
#include "ops/kernel_context.h"
#include "runtime/api/graph_builder.h"

namespace glim::v0 {
namespace {

const RegisteredOp& self_of(const void* user_data) { return *static_cast<const RegisteredOp*>(user_data); }

OpTypes types_of(std::span<const glim::TensorType* const> in, std::span<const glim::TensorType> out, std::span<const uint32_t> words,
                 const void* user_data) {
  OpTypes types{{}, {}, Attributes(user_data, words.data())};
  for (const glim::TensorType* type : in) types.inputs.push_back(type == nullptr ? std::nullopt : std::optional(to_public(*type)));
  for (const glim::TensorType& type : out) types.outputs.push_back(to_public(type));
  return types;
}

glim::Result<Types> infer(const InferArgs& a) {
  const Op& op = self_of(a.user_data).op();
  try {
    const Result<std::vector<TensorType>> inferred = op.infer(types_of(a.in, {}, a.attr_words, a.user_data));
    if (!inferred) return to_engine(inferred.error());
    if (inferred->size() != op.outputs.size())
      return invalid_argument(fmt::format("its type inference gives {} types for {} outputs", inferred->size(), op.outputs.size()));
    Types types;
    for (const TensorType& type : *inferred) {
      GLIM_ASSIGN(const glim::TensorType converted, to_engine(type));
      types.push_back(converted);
    }
    return types;
  } catch (...) {
    return invalid_argument(fmt::format("in its type inference {}", describe_exception()));
  }
}

// The rule's cotangents, checked as `gradients` demands them.
glim::Result<std::vector<ValueId>> run_rule(const RegisteredOp& self, Graph& graph, const VjpArgs& a) {
  const auto values = [](std::span<const ValueId> ids) {
    std::vector<Value> all;
    for (const ValueId id : ids) all.push_back({id.index});
    return all;
  };
  const std::vector<Value> in = values(a.in), out = values(a.out), cotangents = values(a.cotangents);
  BuilderState state{&graph, {}};
  GraphBuilder builder(&state);
  const Result<std::vector<Value>> made = self.op().vjp(builder, {in, out, cotangents, Attributes(&self, a.attr_words.data())});
  if (state.error) return *std::move(state.error);
  if (!made) return to_engine(made.error());
  if (made->size() != in.size()) return invalid_argument(fmt::format("it gives {} cotangents for {} operands", made->size(), in.size()));
  std::vector<ValueId> result;
  for (size_t k = 0; k < in.size(); ++k) {
    const ValueId cotangent{(*made)[k].id};
    if (cotangent.valid() && cotangent.index >= graph.num_values())
      return invalid_argument(fmt::format("the cotangent of '{}' is no value of this graph", self.op().operands[k].name));
    if (cotangent.valid() && a.in[k].valid() && graph.type(cotangent) != graph.type(a.in[k])) {
      return invalid_argument(fmt::format("the cotangent of '{}' is {}, but the operand is {}", self.op().operands[k].name,
                                          glim::to_string(graph.type(cotangent)), glim::to_string(graph.type(a.in[k]))));
    }
    result.push_back(cotangent);
  }
  return result;
}

std::vector<ValueId> vjp(Graph& graph, const VjpArgs& a) {
  const RegisteredOp& self = self_of(a.user_data);
  try {
    glim::Result<std::vector<ValueId>> cotangents = run_rule(self, graph, a);
    if (cotangents) return *std::move(cotangents);
    self.fail(std::move(cotangents.error()));
  } catch (...) {
    self.fail(invalid_argument(describe_exception()));
  }
  return std::vector<ValueId>(a.in.size());
}

void kernel(const KernelArgs& k) {
  const RegisteredOp& self = self_of(k.user_data);
  std::array<TensorView, 2 * kMaxOperands> views;
  const auto view_of = [](const glim::TensorView& view) {
    const Shape& shape = view.type.shape;
    return TensorView{
        view.data, to_public(view.type.dtype), {shape.dims.data(), shape.rank}, shape.rank == 2 ? view.row_stride : shape.last()};
  };
  std::transform(k.in.begin(), k.in.end(), views.begin(), view_of);
  std::transform(k.out.begin(), k.out.end(), views.begin() + kMaxOperands, view_of);
  try {
    self.op().kernel({{views.data(), k.in.size()},
                      {views.data() + kMaxOperands, k.out.size()},
                      k.workspace,
                      Attributes(&self, k.attr_words.data()),
                      &k.context});
  } catch (...) {
    k.context.fail(describe_exception());
  }
}

glim::Cost cost(const CostArgs& a) {
  const Op& op = self_of(a.user_data).op();
  glim::Cost result = ops::per_element<1>(a);
  if (!op.cost) return result;
  try {
    const Cost said = op.cost(types_of(a.in, a.out, a.attr_words, a.user_data));
    result.flops = said.flops;
    result.workspace_bytes = said.workspace_bytes;
  } catch (...) {
    self_of(a.user_data).fail(invalid_argument(fmt::format("in its cost {}", describe_exception())));
  }
  return result;
}

std::vector<OpCase> no_cases() { return {}; }

bool is_identifier(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::all_of(name.begin(), name.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; });
}

AttrSpec spec_of(const Attribute& attribute) {
  AttrSpec spec{.name = attribute.name, .required = attribute.required, .doc = attribute.doc};
  if (const auto* real = std::get_if<double>(&attribute.default_value)) spec.default_real = *real;
  if (const auto* integer = std::get_if<int64_t>(&attribute.default_value)) {
    spec.kind = AttrKind::kInteger;
    spec.default_integer = *integer;
  }
  if (const auto* flag = std::get_if<bool>(&attribute.default_value)) {
    spec.kind = AttrKind::kBool;
    spec.default_integer = *flag ? 1 : 0;
  }
  return spec;
}

size_t attribute_of(const void* op, std::string_view name, AttrKind kind) {
  const OpDef& def = self_of(op).def();
  std::vector<std::string_view> names;
  for (size_t k = 0; k < def.attrs.size(); ++k) {
    if (def.attrs[k].name == name && def.attrs[k].kind == kind) return k;
    if (def.attrs[k].name == name) throw std::out_of_range(fmt::format("the attribute '{}' of '{}' is of another kind", name, def.name));
    names.push_back(def.attrs[k].name);
  }
  throw std::out_of_range(fmt::format("'{}' has no attribute '{}'{}", def.name, name, did_you_mean(name, names)));
}

}  // namespace

double Attributes::real(std::string_view name) const {
  const size_t k = attribute_of(op_, name, AttrKind::kReal);
  return real_at({words_, (k + 1) * kWordsPerAttr}, k);
}
int64_t Attributes::integer(std::string_view name) const {
  const size_t k = attribute_of(op_, name, AttrKind::kInteger);
  return integer_at({words_, (k + 1) * kWordsPerAttr}, k);
}
bool Attributes::flag(std::string_view name) const {
  const size_t k = attribute_of(op_, name, AttrKind::kBool);
  return integer_at({words_, (k + 1) * kWordsPerAttr}, k) != 0;
}

void KernelCall::fail(std::string_view message) const { static_cast<KernelContext*>(machine)->fail(std::string(message)); }

void KernelCall::run_tasks(int64_t num_tasks, void (*task)(void*, int64_t), void* object) const {
  auto& context = *static_cast<KernelContext*>(machine);
  context.parallel_for(num_tasks, [&](int64_t i) {
    try {
      task(object, i);
    } catch (...) {  // other threads than the caller's run this
      context.fail(describe_exception());
    }
  });
}

RegisteredOp::RegisteredOp(Op op, std::optional<glim::Error>& failure) : op_(std::move(op)), failure_(&failure) {
  if (op_.outputs.empty()) op_.outputs = {"out"};
  if (op_.summary.empty()) op_.summary = "an op of the host";
  for (const Operand& operand : op_.operands) operands_.push_back({operand.name, operand.optional});
  for (const std::string& output : op_.outputs) outputs_.push_back(output);
  for (const Attribute& attribute : op_.attributes) attrs_.push_back(spec_of(attribute));
  def_ = {.name = op_.name,
          .summary = op_.summary,
          .operands = operands_,
          .outputs = outputs_,
          .attrs = attrs_,
          .diff = op_.vjp ? Diff::kHasVjp : Diff::kNoVjp,
          .infer = infer,
          .vjp = op_.vjp ? vjp : nullptr,
          .cpu = kernel,
          .cost = cost,
          .memory = {ops::no_alias},
          .precision = Precision::kFollows,
          .shard = Shard::kNone,
          .cases = no_cases,
          .user_data = this};
}

glim::Status RegisteredOp::check() const {
  const auto wrong = [&](std::string what) { return invalid_argument(fmt::format("op '{}': {}", op_.name, what)); };
  if (!is_identifier(op_.name)) return wrong("a name consists of a-z, 0-9 and _");
  if (!op_.infer) return wrong("it has no type inference (Op::infer)");
  if (!op_.kernel) return wrong("it has no kernel (Op::kernel)");
  if (op_.operands.empty() || op_.operands.size() > kMaxOperands || op_.outputs.size() > kMaxOperands)
    return wrong(fmt::format("it needs 1 to {} operands and outputs", kMaxOperands));
  std::set<std::string_view> names{"out", "op", "when"};  // keys of a model file
  const auto claim = [&](const std::string& name) { return is_identifier(name) && names.insert(name).second; };
  for (const Operand& operand : op_.operands) {
    if (!claim(operand.name)) return wrong(fmt::format("'{}' cannot name an operand: it is taken, or not of a-z, 0-9 and _", operand.name));
  }
  for (const Attribute& attribute : op_.attributes) {
    if (!claim(attribute.name))
      return wrong(fmt::format("'{}' cannot name an attribute: it is taken, or not of a-z, 0-9 and _", attribute.name));
    if (std::holds_alternative<std::string>(attribute.default_value))
      return wrong(fmt::format("attribute '{}' must be a number or a flag", attribute.name));
  }
  names.clear();
  for (const std::string& output : op_.outputs) {
    if (!claim(output)) return wrong(fmt::format("'{}' cannot name an output: it is taken, or not of a-z, 0-9 and _", output));
  }
  return ok();
}

void RegisteredOp::fail(glim::Error error) const {
  if (failure_->has_value()) return;
  error.message = fmt::format("op '{}': {}", op_.name, error.message);
  *failure_ = std::move(error);
}

glim::Status register_ops(const std::vector<Op>& ops, OpTable& table, std::list<RegisteredOp>& registered,
                          std::optional<glim::Error>& failure) {
  for (const Op& op : ops) {
    const RegisteredOp& made = registered.emplace_back(op, failure);
    GLIM_TRY(made.check());
    GLIM_ASSIGN([[maybe_unused]] const OpId row, table.add(made.def()));
  }
  return ok();
}

}  // namespace glim::v0
