#include "models/build.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "engine/suggest.h"
#include "models/derived.h"
#include "models/parameters.h"

namespace glim {
namespace {

// What a name in a model file refers to, before there is a graph.
struct Ref {
  enum class Kind : uint8_t { kAbsent, kOp, kInput, kParameter } kind = Kind::kAbsent;
  uint32_t index = 0;   // of the op instance, input or parameter
  uint16_t output = 0;  // of an op
};
using RefMap = std::map<std::string, Ref, std::less<>>;

// One op of one layer, its operands found.
struct OpInstance {
  const OpSpec* spec;
  OpId op;
  uint32_t block_instance;
  std::vector<Ref> operands;
  bool needed = false;
};
struct BlockInstance {
  const BlockSpec* block;
  int64_t layer, num_layers;
};
struct WantedOutput {
  std::string name;
  Ref ref;
  const Name* value;
};

class Builder {
 public:
  Builder(const ModelSpec& spec, const OpTable& table, const BuildOptions& options)
      : spec_(spec), table_(table), options_(options), names_(spec, options.runtime_dims), built_{Graph(table), {}, {}, {}} {}

  Result<BuiltModel> run() {
    GLIM_TRY(check_options());
    GLIM_TRY(names_.check_all());
    for (const NamedScalar& dim : spec_.dims) {
      GLIM_ASSIGN(const int64_t extent, names_.extent(dim.value, 1, "a dimension"));
      built_.dims[dim.name.text] = extent;
    }
    GLIM_ASSIGN(parameters_, expand_parameters(spec_, names_, options_.real, options_.max_instances));
    for (const InputSpec& input : spec_.inputs) GLIM_TRY(check_derived(input));
    for (const BlockSpec& block : spec_.blocks) GLIM_TRY(resolve_block(block));
    GLIM_TRY(resolve_outputs());
    mark_needed();
    GLIM_TRY(add_inputs());
    add_parameters();
    GLIM_TRY(emit_ops());
    for (const WantedOutput& output : wanted_) {
      GLIM_ASSIGN(const ValueId value, value_of(output.ref, *output.value));
      built_.graph.add_output(output.name, value);
    }
    return std::move(built_);
  }

 private:
  // ---- options and inputs

  Status check_options() const {
    if (!is_float(options_.real))
      return invalid_argument(fmt::format("a model computes in f64, f32 or bf16, not in {}", to_string(options_.real)));
    std::vector<std::string> dims, optional;
    for (const RuntimeDim& dim : spec_.runtime_dims) dims.push_back(dim.name.text);
    for (const auto& [name, value] : options_.runtime_dims) {
      if (std::find(dims.begin(), dims.end(), name) == dims.end())
        return invalid_argument(fmt::format("the model has no runtime dimension '{}'{}", name, did_you_mean(name, dims)));
      if (value < 0 || value > kMaxDim)
        return invalid_argument(fmt::format("runtime dimension '{}' must be in [0, {}], not {}", name, kMaxDim, value));
    }
    for (const InputSpec& input : spec_.inputs) {
      if (input.optional) optional.push_back(input.name.text);
    }
    for (const std::string& name : options_.optional_inputs) {
      if (std::find(optional.begin(), optional.end(), name) == optional.end())
        return invalid_argument(fmt::format("the model has no optional input '{}'{}", name, did_you_mean(name, optional)));
    }
    return ok();
  }

  bool is_there(const InputSpec& input) const {
    return !input.optional ||
           std::find(options_.optional_inputs.begin(), options_.optional_inputs.end(), input.name.text) != options_.optional_inputs.end();
  }

  static Status check_derived(const InputSpec& input) {
    if (!input.derived) return ok();
    const DerivedSpec& derived = *input.derived;
    const DerivedFunction* function = find_derived_function(derived.from.text);
    if (function == nullptr) {
      std::vector<std::string_view> known;
      for (const DerivedFunction& each : derived_functions()) known.push_back(each.name);
      return invalid_argument(fmt::format("unknown host function '{}'{}", derived.from.text, did_you_mean(derived.from.text, known)),
                              derived.from.where);
    }
    std::vector<std::string_view> known;
    for (const DerivedParameter& parameter : function->parameters) {
      known.push_back(parameter.name);
      const bool given = std::any_of(derived.arguments.begin(), derived.arguments.end(),
                                     [&](const NamedScalar& a) { return a.name.text == parameter.name; });
      if (parameter.required && !given)
        return invalid_argument(fmt::format("host function '{}' needs '{}'", function->name, parameter.name), derived.from.where);
    }
    for (const NamedScalar& argument : derived.arguments) {
      const auto found = std::find_if(function->parameters.begin(), function->parameters.end(),
                                      [&](const DerivedParameter& p) { return p.name == argument.name.text; });
      if (found == function->parameters.end()) {
        return invalid_argument(fmt::format("host function '{}' has no parameter '{}'{}", function->name, argument.name.text,
                                            did_you_mean(argument.name.text, known)),
                                argument.name.where);
      }
      const bool is_text = argument.value.kind == Scalar::Kind::kText;
      if (argument.value.kind == Scalar::Kind::kBool || (!found->is_number && !is_text)) {
        return invalid_argument(
            fmt::format("'{}' must be {}", argument.name.text, found->is_number ? "an integer" : "the name of a host value"),
            argument.value.where);
      }
    }
    return ok();
  }

  Status add_inputs() {
    for (size_t k = 0; k < spec_.inputs.size(); ++k) {
      if (!input_needed_[k]) continue;
      const InputSpec& spec = spec_.inputs[k];
      ModelInput input;
      input.name = spec.name.text;
      GLIM_ASSIGN(input.type, evaluate_type(spec.shape, spec.dtype, options_.real, 0, spec.name.where, names_));
      if (spec.range) {
        GLIM_ASSIGN(const int64_t lowest, names_.integer((*spec.range)[0]));
        GLIM_ASSIGN(const int64_t highest, names_.integer((*spec.range)[1]));
        input.range = {lowest, highest};
      }
      if (spec.allow) {
        GLIM_ASSIGN(const int64_t allow, names_.integer(*spec.allow));
        input.allow = allow;
      }
      for (const Scalar& placeholder : spec.zeroed) {
        GLIM_ASSIGN(const int64_t value, names_.integer(placeholder));
        input.zeroed.push_back(value);
      }
      input.ascending = spec.ascending;
      if (spec.derived) {
        input.derived_from = spec.derived->from.text;
        const DerivedFunction* function = find_derived_function(input.derived_from);
        for (const NamedScalar& argument : spec.derived->arguments) {
          DerivedArgument made{argument.name.text, "", 0};
          const auto parameter = std::find_if(function->parameters.begin(), function->parameters.end(),
                                              [&](const DerivedParameter& p) { return p.name == argument.name.text; });
          if (parameter->is_number) {
            GLIM_ASSIGN(made.number, names_.integer(argument.value));
          } else {
            made.value = argument.value.text;
          }
          input.arguments.push_back(std::move(made));
        }
      }
      set_origin("", spec.name.where);
      input.value = built_.graph.add_leaf(LeafKind::kInput, input.name, input.type);
      input_values_[k] = input.value;
      built_.inputs.push_back(std::move(input));
    }
    return ok();
  }

  void add_parameters() {
    for (size_t k = 0; k < parameters_.parameters.size(); ++k) {
      ModelParameter& parameter = parameters_.parameters[k];
      set_origin(parameter.instance, parameters_.places[k]);
      parameter.value = built_.graph.add_leaf(LeafKind::kParameter, parameter.name, parameter.type);
    }
    built_.parameters = parameters_.parameters;
  }

  // ---- names -> refs

  Status resolve_block(const BlockSpec& block) {
    GLIM_ASSIGN(const int64_t layers, num_instances(block, names_));
    if (ops_.size() + static_cast<size_t>(layers) * block.ops.size() > options_.max_instances) {
      return invalid_argument(fmt::format("the model has more than {} ops", options_.max_instances), block.name.where);
    }
    num_layer_outputs_ += static_cast<size_t>(layers) *
                          static_cast<size_t>(std::count_if(spec_.outputs.begin(), spec_.outputs.end(),
                                                            [&](const OutputSpec& o) { return o.layers.text == block.name.text; }));
    if (num_layer_outputs_ > options_.max_instances)
      return invalid_argument(fmt::format("the model has more than {} outputs", options_.max_instances), block.name.where);
    RefMap carried;
    for (const Name& name : block.carry) {
      const auto found = flow_.find(name.text);
      if (found == flow_.end()) return unknown_value(name, {}, &block);
      carried[name.text] = found->second;
    }
    for (int64_t layer = 0; layer < layers; ++layer) {
      names_.enter_layer(block.count ? &block : nullptr, layer, layers);
      block_instances_.push_back({&block, layer, layers});
      RefMap values = carried;
      GLIM_TRY(resolve_ops(block, values));
      for (auto& [name, ref] : carried) ref = values[name];
      keep_layer_values(block, values);
      if (!block.count) carried = std::move(values);
    }
    names_.enter_layer(nullptr, 0, 0);
    for (const auto& [name, ref] : carried) {
      flow_[name] = ref;
      flow_[block.name.text + "." + name] = ref;
    }
    return ok();
  }

  Status resolve_ops(const BlockSpec& block, RefMap& values) {
    std::map<std::string, SourceLocation, std::less<>> made;
    for (const OpSpec& op : block.ops) {
      bool runs = true;
      if (op.when) {
        GLIM_ASSIGN(runs, names_.condition(*op.when));
      }
      GLIM_ASSIGN(OpInstance instance, resolve_op(block, op, values, runs));
      const OpDef& def = table_[instance.op];
      for (size_t k = 0; k < op.out.size(); ++k) {
        GLIM_TRY(check_new_value(block, op.out[k], made));
        made[op.out[k].text] = op.out[k].where;
        // A skipped op passes its first operand through.
        Ref ref{Ref::Kind::kOp, static_cast<uint32_t>(ops_.size()), static_cast<uint16_t>(k)};
        if (!runs) ref = k == 0 && !instance.operands.empty() ? instance.operands[0] : Ref{};
        values[op.out[k].text] = ref;
        if (k > 0) continue;
        for (size_t output = 0; output < def.outputs.size(); ++output) {
          ref.output = runs ? static_cast<uint16_t>(output) : ref.output;
          values[fmt::format("{}.{}", op.out[0].text, def.outputs[output])] = runs || output == 0 ? ref : Ref{};
        }
      }
      if (runs) ops_.push_back(std::move(instance));
    }
    for (const Name& name : block.carry) {
      if (!made.contains(name.text))
        return invalid_argument(fmt::format("stack '{}' carries '{}', but none of its ops makes it", block.name.text, name.text),
                                name.where);
    }
    return ok();
  }

  Status check_new_value(const BlockSpec& block, const Name& name, const std::map<std::string, SourceLocation, std::less<>>& made) const {
    if (std::any_of(block.params.begin(), block.params.end(), [&](const ParamSpec& p) { return p.name.text == name.text; })) {
      return invalid_argument(fmt::format("duplicate name: '{}' is already a parameter of '{}'", name.text, block.name.text), name.where);
    }
    if (std::any_of(spec_.inputs.begin(), spec_.inputs.end(), [&](const InputSpec& i) { return i.name.text == name.text; })) {
      return invalid_argument(fmt::format("duplicate name: '{}' is already an input", name.text), name.where);
    }
    const bool carried = std::any_of(block.carry.begin(), block.carry.end(), [&](const Name& c) { return c.text == name.text; });
    const auto before = made.find(name.text);
    if (before == made.end() || carried) return ok();
    return invalid_argument(fmt::format("duplicate name: '{}' is already made in line {}; only carried values can be made anew", name.text,
                                        before->second.line),
                            name.where);
  }

  Result<OpInstance> resolve_op(const BlockSpec& block, const OpSpec& op, const RefMap& values, bool runs) {
    const std::optional<OpId> id = table_.find(op.op.text);
    if (!id || *id == kLeafOp) {
      const std::vector<std::string_view> known = table_.names();
      return invalid_argument(fmt::format("unknown op '{}'{}", op.op.text, did_you_mean(op.op.text, known)), op.op.where);
    }
    const OpDef& def = table_[*id];
    OpInstance instance{&op, *id, static_cast<uint32_t>(block_instances_.size() - 1), {}};
    const bool variadic = !def.operands.empty() && def.operands.back().variadic;
    const size_t fixed = def.operands.size() - (variadic ? 1 : 0);
    instance.operands.resize(fixed);
    std::vector<bool> given(fixed, false);
    for (const OpArgument& argument : op.arguments) {
      const auto operand =
          std::find_if(def.operands.begin(), def.operands.end(), [&](const OperandSpec& o) { return o.name == argument.name.text; });
      if (operand == def.operands.end()) {
        GLIM_TRY(check_attribute_name(def, argument));
        continue;
      }
      auto position = static_cast<size_t>(operand - def.operands.begin());
      if (argument.is_list && position != 0 && !operand->variadic)
        return invalid_argument(fmt::format("operand '{}' of '{}' takes one value, not a list", operand->name, def.name),
                                argument.name.where);
      for (const Scalar& value : argument.values) {
        if (value.kind != Scalar::Kind::kText)
          return invalid_argument(fmt::format("operand '{}' of '{}' must be the name of a value", operand->name, def.name), value.where);
        const Name name{value.text, value.where};
        GLIM_ASSIGN(const Ref ref, find_value(block, name, values));
        if (position >= fixed) {
          if (!variadic)
            return invalid_argument(fmt::format("op '{}' takes {} operands, not {}", def.name, fixed, argument.values.size()),
                                    argument.name.where);
          if (runs && ref.kind == Ref::Kind::kAbsent) return invalid_argument(fmt::format("'{}' is absent here", name.text), name.where);
          instance.operands.push_back(ref);
          continue;
        }
        if (given[position])
          return invalid_argument(fmt::format("operand '{}' of '{}' is given twice", def.operands[position].name, def.name), value.where);
        given[position] = true;
        if (runs && ref.kind == Ref::Kind::kAbsent && !def.operands[position].optional) {
          return invalid_argument(
              fmt::format("op '{}' needs its operand '{}', but '{}' is absent here", def.name, def.operands[position].name, name.text),
              name.where);
        }
        instance.operands[position++] = ref;
      }
    }
    for (size_t k = 0; k < fixed; ++k) {
      if (!given[k] && !def.operands[k].optional)
        return invalid_argument(fmt::format("op '{}' needs its operand '{}'", def.name, def.operands[k].name), op.where);
    }
    for (const AttrSpec& attr : def.attrs) {
      const bool there =
          std::any_of(op.arguments.begin(), op.arguments.end(), [&](const OpArgument& a) { return a.name.text == attr.name; });
      if (attr.required && !there)
        return invalid_argument(fmt::format("op '{}' needs the attribute '{}': {}", def.name, attr.name, attr.doc), op.where);
    }
    return instance;
  }

  static Status check_attribute_name(const OpDef& def, const OpArgument& argument) {
    std::vector<std::string_view> known{"out", "op", "when"};
    for (const OperandSpec& operand : def.operands) known.push_back(operand.name);
    for (const AttrSpec& attr : def.attrs) {
      if (attr.name != argument.name.text) {
        known.push_back(attr.name);
        continue;
      }
      if (argument.is_list)
        return invalid_argument(fmt::format("attribute '{}' of '{}' takes one value, not a list", attr.name, def.name),
                                argument.name.where);
      return ok();
    }
    return invalid_argument(
        fmt::format("op '{}' has no operand or attribute '{}'{}", def.name, argument.name.text, did_you_mean(argument.name.text, known)),
        argument.name.where);
  }

  // Inside a block: its own values, its parameters, what earlier blocks left, the inputs.
  Result<Ref> find_value(const BlockSpec& block, const Name& name, const RefMap& values) const {
    if (const auto own = values.find(name.text); own != values.end()) return own->second;
    const BlockInstance& instance = block_instances_.back();
    if (const auto parameter = parameters_.index.find(instance_name(block, instance.layer) + "." + name.text);
        parameter != parameters_.index.end()) {
      return parameter->second == ParameterTable::kAbsent ? Ref{} : Ref{Ref::Kind::kParameter, static_cast<uint32_t>(parameter->second)};
    }
    if (const auto before = flow_.find(name.text); before != flow_.end()) return before->second;
    for (size_t k = 0; k < spec_.inputs.size(); ++k) {
      if (spec_.inputs[k].name.text == name.text)
        return is_there(spec_.inputs[k]) ? Ref{Ref::Kind::kInput, static_cast<uint32_t>(k)} : Ref{};
    }
    return unknown_value(name, values, &block);
  }

  Error unknown_value(const Name& name, const RefMap& values, const BlockSpec* block) const {
    std::vector<std::string> known;
    for (const auto& [value, ref] : values) known.push_back(value);
    for (const auto& [value, ref] : flow_) known.push_back(value);
    if (block != nullptr) {
      for (const InputSpec& input : spec_.inputs) known.push_back(input.name.text);
      for (const ParamSpec& param : block->params) known.push_back(param.name.text);
      for (const OpSpec& op : block->ops) {
        for (const Name& out : op.out) {
          if (out.text != name.text) continue;
          return invalid_argument(fmt::format("'{}' is used before it is made (in line {})", name.text, out.where.line), name.where);
        }
      }
    }
    return invalid_argument(fmt::format("unknown value '{}'{}", name.text, did_you_mean(name.text, known)), name.where);
  }

  // ---- outputs

  void keep_layer_values(const BlockSpec& block, const RefMap& values) {
    for (const OutputSpec& output : spec_.outputs) {
      if (output.layers.text != block.name.text) continue;
      const auto found = values.find(output.value.text);
      if (found != values.end()) layer_values_[output.name.text].push_back(found->second);
    }
  }

  Status resolve_outputs() {
    std::set<std::string> asked(options_.outputs.begin(), options_.outputs.end());
    std::vector<std::string> known;
    for (const OutputSpec& output : spec_.outputs) {
      const std::string& name = output.name.text;
      known.push_back(name);
      if (output.layers.empty()) {
        const auto found = flow_.find(output.value.text);
        if (found == flow_.end()) return unknown_value(output.value, {}, nullptr);
        if (asked.erase(name) > 0 || options_.outputs.empty()) wanted_.push_back({name, found->second, &output.value});
        continue;
      }
      const BlockSpec* stack = spec_.find_block(output.layers.text);
      if (stack == nullptr || !stack->count) {
        std::vector<std::string> stacks;
        for (const BlockSpec& block : spec_.blocks) {
          if (block.count) stacks.push_back(block.name.text);
        }
        return invalid_argument(fmt::format("unknown stack '{}'{}", output.layers.text, did_you_mean(output.layers.text, stacks)),
                                output.layers.where);
      }
      const std::vector<Ref>& layers = layer_values_[name];
      if (layers.empty())
        return invalid_argument(fmt::format("stack '{}' has no value '{}'", output.layers.text, output.value.text), output.value.where);
      const bool all = asked.erase(name) > 0;
      for (size_t layer = 0; layer < layers.size(); ++layer) {
        const std::string full = fmt::format("{}.{}", name, layer);
        known.push_back(full);
        const bool this_one = asked.erase(full) > 0;
        if (all || this_one) wanted_.push_back({full, layers[layer], &output.value});
      }
    }
    if (asked.empty()) return ok();
    return invalid_argument(fmt::format("the model has no output '{}'{}", *asked.begin(), did_you_mean(*asked.begin(), known)));
  }

  // ---- from refs to the graph

  void mark_needed() {
    input_needed_.assign(spec_.inputs.size(), false);
    input_values_.assign(spec_.inputs.size(), {});
    const bool everything = options_.outputs.empty();
    const auto mark = [&](const Ref& ref) {
      if (ref.kind == Ref::Kind::kOp) ops_[ref.index].needed = true;
      if (ref.kind == Ref::Kind::kInput) input_needed_[ref.index] = true;
    };
    for (const WantedOutput& output : wanted_) mark(output.ref);
    for (size_t k = ops_.size(); k-- > 0;) {
      if (everything) ops_[k].needed = true;
      if (!ops_[k].needed) continue;
      for (const Ref& operand : ops_[k].operands) mark(operand);
    }
    // What a derived input is computed from is an input too, when the file declares it as one.
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t k = 0; k < spec_.inputs.size(); ++k) {
        if (!input_needed_[k] || !spec_.inputs[k].derived) continue;
        for (const NamedScalar& argument : spec_.inputs[k].derived->arguments) {
          for (size_t other = 0; other < spec_.inputs.size(); ++other) {
            if (spec_.inputs[other].name.text != argument.value.text || input_needed_[other] || !is_there(spec_.inputs[other])) continue;
            input_needed_[other] = changed = true;
          }
        }
      }
    }
  }

  Status emit_ops() {
    op_nodes_.assign(ops_.size(), {});
    uint32_t entered = ~0U;
    for (size_t k = 0; k < ops_.size(); ++k) {
      const OpInstance& op = ops_[k];
      if (!op.needed) continue;
      const BlockInstance& instance = block_instances_[op.block_instance];
      const bool in_stack = instance.block->count.has_value();
      if (op.block_instance != entered) {
        entered = op.block_instance;
        names_.enter_layer(in_stack ? instance.block : nullptr, instance.layer, instance.num_layers);
        instance_path_ = instance_name(*instance.block, instance.layer);
      }
      std::vector<ValueId> operands;
      for (const Ref& ref : op.operands) {
        ValueId value;
        if (ref.kind != Ref::Kind::kAbsent) {
          GLIM_ASSIGN(value, value_of(ref, op.spec->op));
        }
        operands.push_back(value);
      }
      GLIM_ASSIGN(const std::vector<uint32_t> words, attribute_words(*op.spec, table_[op.op]));
      set_origin(instance_path_, op.spec->where);
      Result<NodeId> node = built_.graph.emit(op.op, operands, std::span<const uint32_t>(words));
      if (!node)
        return invalid_argument(fmt::format("{} ({})", node.error().message, describe_operands(op, operands, in_stack)), op.spec->where);
      const size_t num_outputs = built_.graph.node(*node).num_outputs;
      if (op.spec->out.size() > num_outputs) {
        return invalid_argument(fmt::format("op '{}' has {} outputs here, not {}", op.spec->op.text, num_outputs, op.spec->out.size()),
                                op.spec->out[num_outputs].where);
      }
      op_nodes_[k] = *node;
    }
    names_.enter_layer(nullptr, 0, 0);
    return ok();
  }

  // "in f32[16,32], weight f32[8,16]; in decoder.0"
  std::string describe_operands(const OpInstance& op, const std::vector<ValueId>& operands, bool in_stack) const {
    const OpDef& def = table_[op.op];
    constexpr size_t kMaxShown = 16;
    std::string text;
    for (size_t k = 0; k < operands.size(); ++k) {
      if (k == kMaxShown) text += ", ...";
      if (k >= kMaxShown || !operands[k].valid()) continue;
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", def.operands[std::min(k, def.operands.size() - 1)].name,
                          to_string(built_.graph.type(operands[k])));
    }
    return in_stack ? fmt::format("{}; in {}", text, instance_path_) : text;
  }

  Result<ValueId> value_of(const Ref& ref, const Name& name) const {
    switch (ref.kind) {
      case Ref::Kind::kInput: return input_values_[ref.index];
      case Ref::Kind::kParameter: return parameters_.parameters[ref.index].value;
      case Ref::Kind::kOp:
        if (ref.output < built_.graph.node(op_nodes_[ref.index]).num_outputs) return built_.graph.output(op_nodes_[ref.index], ref.output);
        break;
      case Ref::Kind::kAbsent: break;
    }
    return invalid_argument(fmt::format("'{}' is absent here", name.text), name.where);
  }

  Result<std::vector<uint32_t>> attribute_words(const OpSpec& op, const OpDef& def) {
    std::vector<uint32_t> words = default_words(def.attrs);
    for (size_t k = 0; k < def.attrs.size(); ++k) {
      const AttrSpec& attr = def.attrs[k];
      const auto argument =
          std::find_if(op.arguments.begin(), op.arguments.end(), [&](const OpArgument& a) { return a.name.text == attr.name; });
      if (argument == op.arguments.end()) continue;
      const Scalar& value = argument->values[0];
      switch (attr.kind) {
        case AttrKind::kReal: {
          GLIM_ASSIGN(const Number number, names_.number(value));
          set_real(words, k, number.real);
          break;
        }
        case AttrKind::kInteger: {
          GLIM_ASSIGN(const int64_t integer, names_.integer(value));
          set_integer(words, k, integer);
          break;
        }
        case AttrKind::kBool: {
          GLIM_ASSIGN(const bool flag, names_.condition(value));
          set_integer(words, k, flag ? 1 : 0);
          break;
        }
        case AttrKind::kEnum: {
          const auto choice = std::find(attr.choices.begin(), attr.choices.end(), value.text);
          if (value.kind != Scalar::Kind::kText || choice == attr.choices.end()) {
            return invalid_argument(fmt::format("attribute '{}' of '{}' is one of {}", attr.name, def.name, fmt::join(attr.choices, ", ")),
                                    value.where);
          }
          set_integer(words, k, choice - attr.choices.begin());
          break;
        }
      }
    }
    return words;
  }

  void set_origin(const std::string& path, const SourceLocation& where) {
    if (path != origin_path_) {
      origin_path_ = path;
      origin_.path = built_.graph.intern(path);
    }
    if (where.file != origin_file_) {
      origin_file_ = where.file;
      origin_.file = built_.graph.intern(where.file.substr(where.file.rfind('/') + 1));
    }
    origin_.line = where.line;
    origin_.column = where.column;
    built_.graph.set_origin(origin_);
  }

  const ModelSpec& spec_;
  const OpTable& table_;
  const BuildOptions& options_;
  Names names_;
  BuiltModel built_;
  ParameterTable parameters_;
  std::vector<BlockInstance> block_instances_;
  std::vector<OpInstance> ops_;
  RefMap flow_;                                           // what blocks left behind: "x" (the latest), "embed.x"
  std::map<std::string, std::vector<Ref>> layer_values_;  // of per-layer outputs
  size_t num_layer_outputs_ = 0;
  std::vector<WantedOutput> wanted_;
  std::vector<bool> input_needed_;
  std::vector<ValueId> input_values_;
  std::vector<NodeId> op_nodes_;
  std::string instance_path_, origin_path_, origin_file_;
  Origin origin_;
};

}  // namespace

Result<BuiltModel> build(const ModelSpec& spec, const OpTable& table, const BuildOptions& options) {
  return Builder(spec, table, options).run();
}

}  // namespace glim
