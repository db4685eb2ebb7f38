#include "engine/graph.h"

#include <fmt/format.h>

#include <algorithm>

namespace glim {

std::string_view to_string(LeafKind kind) {
  switch (kind) {
    case LeafKind::kInput: return "input";
    case LeafKind::kSeed: return "seed";
    case LeafKind::kParameter: return "parameter";
    case LeafKind::kGradient: return "gradient";
    case LeafKind::kOptimizer: return "optimizer";
  }
  return "?";
}

ValueId Graph::add_leaf(LeafKind kind, std::string_view name, const TensorType& type) {
  const ValueId value{static_cast<uint32_t>(value_types_.size())};
  value_types_.push_back(type);
  value_producers_.push_back({static_cast<uint32_t>(nodes_.size())});
  nodes_.push_back({kLeafOp, 0, 1, static_cast<uint32_t>(operands_.size()), value, static_cast<uint32_t>(attr_words_.size())});
  attr_words_.push_back(static_cast<uint32_t>(leaves_.size()));
  leaves_.push_back({value, kind, std::string(name)});
  node_origins_.push_back(current_origin_);
  return value;
}

Result<NodeId> Graph::emit(OpId op, std::span<const ValueId> in, std::span<const uint32_t> attr_words) {
  const OpDef& def = (*table_)[op];
  GLIM_CHECK(op != kLeafOp, "leaves are added with add_leaf");
  GLIM_CHECK(attr_words.size() == def.num_attr_words(), fmt::format("{}: wrong number of attributes", def.name));
  const bool variadic = !def.operands.empty() && def.operands.back().variadic;
  const size_t fixed = def.operands.size() - (variadic ? 1 : 0);
  std::vector<ValueId> operands(in.begin(), in.end());
  if (operands.size() < fixed) operands.resize(fixed);
  if (operands.size() > fixed && !variadic)
    return invalid_argument(fmt::format("{} takes {} operands, not {}", def.name, fixed, in.size()));
  if (operands.size() > UINT16_MAX)
    return invalid_argument(fmt::format("{}: {} operands are more than the {} that an op can have", def.name, in.size(), UINT16_MAX));
  std::vector<const TensorType*> types(operands.size(), nullptr);
  for (size_t k = 0; k < operands.size(); ++k) {
    if (operands[k].valid()) {
      GLIM_CHECK(operands[k].index < num_values(), fmt::format("{}: operand {} is no value of this graph", def.name, k));
      types[k] = &value_types_[operands[k].index];
    } else if (k >= fixed || !def.operands[k].optional) {
      return invalid_argument(fmt::format("{} needs its operand '{}'", def.name, def.operands[std::min(k, def.operands.size() - 1)].name));
    }
  }
  Result<Types> out_types = def.infer({types, attr_words, def.user_data});
  if (!out_types) {
    Error error = std::move(out_types.error());
    error.message = fmt::format("{}: {}", def.name, error.message);
    return error;
  }
  GLIM_CHECK(!out_types->empty() && out_types->size() <= UINT16_MAX, "an op needs at least one output");
  for (const TensorType& type : *out_types) {  // attributes come from files: no op may grow a shape past the limits of types
    if (const Result<Shape> shape = make_shape({type.shape.dims.data(), type.shape.rank}); !shape) {
      return invalid_argument(fmt::format("{}: {}", def.name, shape.error().message));
    }
  }
  const NodeId id{static_cast<uint32_t>(nodes_.size())};
  nodes_.push_back({op,
                    static_cast<uint16_t>(operands.size()),
                    static_cast<uint16_t>(out_types->size()),
                    static_cast<uint32_t>(operands_.size()),
                    {static_cast<uint32_t>(value_types_.size())},
                    static_cast<uint32_t>(attr_words_.size())});
  operands_.insert(operands_.end(), operands.begin(), operands.end());
  attr_words_.insert(attr_words_.end(), attr_words.begin(), attr_words.end());
  for (const TensorType& type : *out_types) {
    value_types_.push_back(type);
    value_producers_.push_back(id);
  }
  node_origins_.push_back(current_origin_);
  return id;
}

void Graph::add_update(ValueId state, ValueId next) {
  GLIM_CHECK(is_leaf(state) && is_state(leaf(state).kind), "only state can be updated");
  GLIM_CHECK(type(state) == type(next),
             fmt::format("update of '{}' changes its type from {} to {}", leaf(state).name, to_string(type(state)), to_string(type(next))));
  updates_.push_back({state, next});
}

std::span<const uint32_t> Graph::attr_words(NodeId n) const {
  const Node& node = nodes_[n.index];
  return {attr_words_.data() + node.attrs, node.op == kLeafOp ? 1 : (*table_)[node.op].num_attr_words()};
}

const Leaf& Graph::leaf(ValueId v) const {
  const Node& node = nodes_[producer(v).index];
  GLIM_CHECK(node.op == kLeafOp, "not a leaf");
  return leaves_[attr_words_[node.attrs]];
}

ValueId Graph::find_leaf(std::string_view name) const {
  const auto found = std::find_if(leaves_.begin(), leaves_.end(), [&](const Leaf& leaf) { return leaf.name == name; });
  return found == leaves_.end() ? ValueId{} : found->value;
}

ValueId Graph::find_output(std::string_view name) const {
  const auto found = std::find_if(outputs_.begin(), outputs_.end(), [&](const NamedValue& output) { return output.name == name; });
  return found == outputs_.end() ? ValueId{} : found->value;
}

std::vector<const TensorType*> Graph::input_types(NodeId n) const {
  std::vector<const TensorType*> types;
  for (const ValueId v : inputs(n)) types.push_back(v.valid() ? &type(v) : nullptr);
  return types;
}

Cost Graph::cost(NodeId n) const {
  if (is_leaf(n)) return {};
  const std::vector<const TensorType*> in = input_types(n);
  const Node& node = nodes_[n.index];
  return def(n).cost({in, {value_types_.data() + node.outputs.index, node.num_outputs}, attr_words(n), def(n).user_data});
}

AliasFact Graph::alias(NodeId n, uint16_t output) const {
  if (is_leaf(n)) return {};
  const std::vector<const TensorType*> in = input_types(n);
  return def(n).memory.alias({in, attr_words(n), def(n).user_data}, output);
}

Region Graph::region(NodeId n, uint16_t index) const {
  const std::vector<const TensorType*> in = input_types(n);
  return def(n).memory.region({in, attr_words(n), def(n).user_data}, index);
}

uint32_t Graph::intern(std::string_view text) {
  const auto found = std::find(strings_.rbegin(), strings_.rend(), text);
  if (found != strings_.rend()) return static_cast<uint32_t>(strings_.rend() - found - 1);
  strings_.emplace_back(text);
  return static_cast<uint32_t>(strings_.size() - 1);
}

std::string Graph::describe_origin(NodeId n) const {
  const Origin origin = node_origins_[n.index];
  std::string text = strings_[origin.path];
  if (origin.is_vjp) text = "vjp of " + text;
  if (origin.line > 0) text += fmt::format(" ({}:{}:{})", strings_[origin.file], origin.line, origin.column);
  return text;
}

size_t Graph::memory_bytes() const {
  size_t bytes = nodes_.capacity() * sizeof(Node) + operands_.capacity() * sizeof(ValueId) + attr_words_.capacity() * sizeof(uint32_t) +
                 value_types_.capacity() * sizeof(TensorType) + value_producers_.capacity() * sizeof(NodeId) +
                 node_origins_.capacity() * sizeof(Origin) + leaves_.capacity() * sizeof(Leaf) + outputs_.capacity() * sizeof(NamedValue) +
                 updates_.capacity() * sizeof(StateUpdate);
  for (const Leaf& leaf : leaves_) bytes += leaf.name.capacity();
  for (const std::string& string : strings_) bytes += sizeof(std::string) + string.capacity();
  return bytes;
}

}  // namespace glim
