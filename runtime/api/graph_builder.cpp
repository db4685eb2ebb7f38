#include "runtime/api/graph_builder.h"

#include <fmt/format.h>

#include "engine/suggest.h"

namespace glim::v0 {
namespace {

glim::Status set_attribute(const AttrSpec& spec, size_t k, const AttributeValue& value, std::span<uint32_t> words) {
  const auto wrong = [&](std::string_view expected) {
    return invalid_argument(fmt::format("attribute '{}' must be {}", spec.name, expected));
  };
  const auto* integer = std::get_if<int64_t>(&value);
  switch (spec.kind) {
    case AttrKind::kReal: {
      const auto* real = std::get_if<double>(&value);
      if (real == nullptr && integer == nullptr) return wrong("a number");
      set_real(words, k, real != nullptr ? *real : static_cast<double>(*integer));
      return ok();
    }
    case AttrKind::kInteger:
      if (integer == nullptr) return wrong("an integer");
      set_integer(words, k, *integer);
      return ok();
    case AttrKind::kBool: {
      const auto* flag = std::get_if<bool>(&value);
      if (flag == nullptr) return wrong("true or false");
      set_integer(words, k, *flag ? 1 : 0);
      return ok();
    }
    case AttrKind::kEnum: {
      const auto* text = std::get_if<std::string>(&value);
      for (size_t choice = 0; text != nullptr && choice < spec.choices.size(); ++choice) {
        if (spec.choices[choice] != *text) continue;
        set_integer(words, k, static_cast<int64_t>(choice));
        return ok();
      }
      return wrong(fmt::format("one of {}", fmt::join(spec.choices, ", ")));
    }
  }
  return ok();
}

glim::Result<std::vector<uint32_t>> words_of(const OpDef& def, const AttributeValues& given) {
  std::vector<uint32_t> words = default_words(def.attrs);
  std::vector<std::string_view> names;
  for (size_t k = 0; k < def.attrs.size(); ++k) {
    const AttrSpec& spec = def.attrs[k];
    names.push_back(spec.name);
    const auto found = given.find(spec.name);
    if (found != given.end()) {
      GLIM_TRY(set_attribute(spec, k, found->second, words));
    } else if (spec.required) {
      return invalid_argument(fmt::format("attribute '{}' must be given", spec.name));
    }
  }
  for (const auto& [name, value] : given) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      return invalid_argument(fmt::format("there is no attribute '{}'{}", name, did_you_mean(name, names)));
  }
  return words;
}

glim::Result<NodeId> emit_node(Graph& graph, std::string_view op, std::span<const Value> inputs, const AttributeValues& attributes) {
  const std::optional<OpId> row = graph.table().find(op);
  if (!row || *row == kLeafOp) {
    const std::vector<std::string_view> names = graph.table().names();
    return invalid_argument(fmt::format("there is no op '{}'{}", op, did_you_mean(op, std::span(names).subspan(1))));
  }
  const auto named = [&](const glim::Error& error) { return invalid_argument(fmt::format("{}: {}", op, error.message)); };
  std::vector<ValueId> operands;
  for (const Value value : inputs) {
    if (value.valid() && value.id >= graph.num_values())
      return invalid_argument(fmt::format("{}: an operand is no value of this graph", op));
    operands.push_back({value.id});
  }
  const glim::Result<std::vector<uint32_t>> words = words_of(graph.table()[*row], attributes);
  if (!words) return named(words.error());
  return graph.emit(*row, operands, std::span<const uint32_t>(*words));
}

}  // namespace

std::vector<Value> GraphBuilder::emit_all(std::string_view op, std::span<const Value> inputs, const AttributeValues& attributes) {
  BuilderState& state = *static_cast<BuilderState*>(state_);
  if (state.error) return {};
  glim::Result<NodeId> node = emit_node(*state.graph, op, inputs, attributes);
  if (!node) {
    state.error = std::move(node.error());
    return {};
  }
  std::vector<Value> outputs;
  for (uint32_t k = 0; k < state.graph->node(*node).num_outputs; ++k) outputs.push_back({state.graph->output(*node, k).index});
  return outputs;
}

Value GraphBuilder::emit(std::string_view op, std::initializer_list<Value> inputs, const AttributeValues& attributes) {
  const std::vector<Value> outputs = emit_all(op, {inputs.begin(), inputs.size()}, attributes);
  return outputs.empty() ? Value{} : outputs[0];
}

TensorType GraphBuilder::type(Value value) const {
  const BuilderState& state = *static_cast<const BuilderState*>(state_);
  if (!value.valid() || value.id >= state.graph->num_values()) return {};
  return to_public(state.graph->type({value.id}));
}

}  // namespace glim::v0
