#include "models/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/suggest.h"
#include "models/expression.h"
#include "models/toml_table.h"

namespace glim {
namespace {

using Kind = TomlValue::Kind;

// ---- extends

std::string folder_of(const std::string& file) {
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? "" : file.substr(0, slash + 1);
}

// `tree`, read from `file`, over the trees that it extends. `chain` holds the files that are being read.
Result<TomlValue> with_bases(TomlValue tree, const std::string& file, std::vector<std::string>& chain) {
  chain.push_back(file);
  const TomlMember* extends = tree.find("extends");
  if (extends == nullptr) return tree;
  GLIM_ASSIGN(const Name base, to_text(extends->value, "extends"));
  if (base.text.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
    return invalid_argument("'extends' names a file of the same folder, without a path", base.where);
  }
  const std::string path = folder_of(file) + base.text;
  if (path == file) return invalid_argument("the file extends itself", base.where);
  if (std::find(chain.begin(), chain.end(), path) != chain.end())
    return invalid_argument(fmt::format("'{}' extends this file in turn: a cycle", base.text), base.where);
  if (chain.size() >= kMaxExtends) return invalid_argument(fmt::format("more than {} files extend each other", kMaxExtends), base.where);
  Result<TomlValue> below = read_toml(path);
  if (!below) {
    Error error = std::move(below.error());
    if (error.code == ErrorCode::kIo) return invalid_argument(fmt::format("'{}' {}", base.text, error.message), base.where);
    return error;
  }
  GLIM_ASSIGN(TomlValue merged, with_bases(*std::move(below), path, chain));
  merge_toml(merged, std::move(tree));
  return merged;
}

// ---- the parts of a file

Result<SpecDType> parse_spec_dtype(const Name& name) {
  if (name.text == "i32") return SpecDType::kI32;
  if (name.text == "real") return SpecDType::kReal;
  if (name.text == "acc") return SpecDType::kAccumulation;
  return invalid_argument(
      fmt::format("unknown dtype '{}': it is \"i32\", \"real\" (the run's precision) or \"acc\" (what sums are taken in)", name.text),
      name.where);
}

class SpecParser {
 public:
  Result<ModelSpec> parse(const TomlValue& root, const std::string& file) {
    spec_.file = file;
    TableReader top(root, "a model file");
    top.take("extends");
    GLIM_TRY(for_each(top, "dims", [&](const TomlMember& m) { return parse_quantity(m, spec_.dims, "a dimension"); }));
    GLIM_TRY(for_each(top, "constants", [&](const TomlMember& m) { return parse_quantity(m, spec_.constants, "a constant"); }));
    GLIM_TRY(for_each(top, "flags", [&](const TomlMember& m) { return parse_quantity(m, spec_.flags, "a flag"); }));
    GLIM_TRY(for_each(top, "runtime_dims", [&](const TomlMember& m) { return parse_runtime_dim(m); }));
    GLIM_TRY(for_each(top, "inputs", [&](const TomlMember& m) { return parse_input(m, false); }));
    GLIM_TRY(for_each(top, "derived", [&](const TomlMember& m) { return parse_input(m, true); }));
    GLIM_TRY(for_each(top, "blocks", [&](const TomlMember& m) { return parse_block(m, false); }));
    GLIM_TRY(for_each(top, "layers", [&](const TomlMember& m) { return parse_block(m, true); }));
    GLIM_TRY(order_blocks(top));
    GLIM_TRY(for_each(top, "outputs", [&](const TomlMember& m) { return parse_output(m); }));
    GLIM_TRY(parse_vocabulary(top));
    GLIM_TRY(parse_hf(top));
    GLIM_TRY(top.finish());
    if (spec_.outputs.empty()) return invalid_argument("a model file needs [outputs]: what can be asked of the model", root.where);
    return std::move(spec_);
  }

 private:
  // Calls parse_member for each member of an optional table.
  template <class F>
  Status for_each(TableReader& reader, std::string_view key, F&& parse_member) {
    const TomlMember* table = reader.take(key);
    if (table == nullptr) return ok();
    GLIM_TRY(expect_kind(table->value, Kind::kTable, key));
    for (const TomlMember& member : table->value.members) GLIM_TRY(parse_member(member));
    return ok();
  }

  // Numbers and flags share one set of names, so that an expression means one thing.
  Status claim(const Name& name, std::string_view what) {
    GLIM_TRY(expect_identifier(name, what));
    for (const std::string_view word : {"and", "or", "not", "true", "false"}) {
      if (name.text == word)
        return invalid_argument(fmt::format("'{}' is a word of conditions and cannot name {}", word, what), name.where);
    }
    const auto [entry, is_new] = quantities_.emplace(name.text, what);
    if (is_new) return ok();
    return invalid_argument(fmt::format("duplicate name: '{}' is already {}", name.text, entry->second), name.where);
  }

  Status parse_quantity(const TomlMember& member, std::vector<NamedScalar>& into, std::string_view what) {
    const Name name{member.key, member.where};
    GLIM_TRY(claim(name, what));
    GLIM_ASSIGN(Scalar value, to_scalar(member.value, member.key));
    const bool wants_flag = what == "a flag";
    if (wants_flag != (value.kind == Scalar::Kind::kBool) || (what == "a dimension" && value.kind == Scalar::Kind::kReal)) {
      const std::string_view wanted = wants_flag              ? "true or false"
                                      : what == "a dimension" ? "an integer or an expression"
                                                              : "a number or an expression";
      return invalid_argument(fmt::format("'{}' is {}: it must be {}, not {}", member.key, what, wanted, to_string(member.value.kind)),
                              value.where);
    }
    into.push_back({name, std::move(value)});
    return ok();
  }

  Status parse_runtime_dim(const TomlMember& member) {
    const Name name{member.key, member.where};
    GLIM_TRY(claim(name, "a runtime dimension"));
    GLIM_ASSIGN(const Name doc, to_text(member.value, member.key));
    spec_.runtime_dims.push_back({name, doc.text});
    return ok();
  }

  Status parse_input(const TomlMember& member, bool is_derived) {
    InputSpec input;
    input.name = {member.key, member.where};
    GLIM_TRY(expect_identifier(input.name, "an input"));
    for (const InputSpec& other : spec_.inputs) {
      if (other.name.text == member.key)
        return invalid_argument(fmt::format("duplicate name: '{}' is already an input", member.key), member.where);
    }
    GLIM_TRY(expect_kind(member.value, Kind::kTable, member.key));
    TableReader reader(member.value, fmt::format("input '{}'", member.key));
    GLIM_ASSIGN(const TomlMember* shape, reader.need("shape"));
    GLIM_ASSIGN(input.shape, to_scalars(shape->value, "shape"));
    GLIM_ASSIGN(const Name dtype, reader.need_text("dtype"));
    GLIM_ASSIGN(input.dtype, parse_spec_dtype(dtype));
    if (const TomlMember* range = reader.take("range")) {
      GLIM_ASSIGN(std::vector<Scalar> bounds, to_scalars(range->value, "range"));
      if (bounds.size() != 2)
        return invalid_argument(fmt::format("'range' is [lowest, highest], not {} values", bounds.size()), range->value.where);
      input.range = std::array<Scalar, 2>{bounds[0], bounds[1]};
    }
    GLIM_ASSIGN(input.allow, reader.take_scalar("allow"));
    if (const TomlMember* zeroed = reader.take("zeroed")) {
      GLIM_ASSIGN(input.zeroed, to_scalars(zeroed->value, "zeroed"));
    }
    GLIM_ASSIGN(input.ascending, reader.take_flag("ascending", false));
    if ((input.range || input.allow || input.ascending || !input.zeroed.empty()) && input.dtype != SpecDType::kI32) {
      return invalid_argument(fmt::format("input '{}': only i32 inputs can have 'range', 'allow', 'zeroed' and 'ascending'", member.key),
                              member.where);
    }
    GLIM_ASSIGN(input.optional, reader.take_flag("optional", false));
    if (is_derived) {
      DerivedSpec derived;
      GLIM_ASSIGN(derived.from, reader.need_text("from"));
      for (const TomlMember& argument : member.value.members) {
        static constexpr std::string_view kOwnKeys[] = {"shape", "dtype", "range", "allow", "zeroed", "ascending", "optional", "from"};
        if (std::find(std::begin(kOwnKeys), std::end(kOwnKeys), argument.key) != std::end(kOwnKeys)) continue;
        reader.take(argument.key);
        GLIM_ASSIGN(Scalar value, to_scalar(argument.value, argument.key));
        derived.arguments.push_back({{argument.key, argument.where}, std::move(value)});
      }
      input.derived = std::move(derived);
    }
    GLIM_TRY(reader.finish());
    spec_.inputs.push_back(std::move(input));
    return ok();
  }

  Status parse_block(const TomlMember& member, bool is_stack) {
    BlockSpec block;
    block.name = {member.key, member.where};
    GLIM_TRY(expect_identifier(block.name, "a block"));
    if (spec_.find_block(member.key) != nullptr)
      return invalid_argument(fmt::format("duplicate name: '{}' is already a block", member.key), member.where);
    GLIM_TRY(expect_kind(member.value, Kind::kTable, member.key));
    TableReader reader(member.value, fmt::format("{} '{}'", is_stack ? "stack" : "block", member.key));
    if (is_stack) {
      GLIM_ASSIGN(const TomlMember* count, reader.need("count"));
      GLIM_ASSIGN(Scalar value, to_scalar(count->value, "count"));
      block.count = std::move(value);
      GLIM_ASSIGN(const TomlMember* carry, reader.need("carry"));
      GLIM_ASSIGN(block.carry, to_names(carry->value, "carry"));
      if (const TomlMember* pattern = reader.take("pattern")) GLIM_TRY(parse_pattern(*pattern, block));
    }
    GLIM_TRY(for_each(reader, "params", [&](const TomlMember& m) { return parse_param(m, block); }));
    GLIM_ASSIGN(const TomlMember* ops, reader.need("ops"));
    GLIM_TRY(expect_kind(ops->value, Kind::kArray, "ops"));
    num_ops_ += ops->value.items.size();
    if (num_ops_ > kMaxOps) return invalid_argument(fmt::format("a model has at most {} ops", kMaxOps), ops->where);
    for (const TomlValue& op : ops->value.items) GLIM_TRY(parse_op(op, block));
    GLIM_TRY(reader.finish());
    spec_.blocks.push_back(std::move(block));
    return ok();
  }

  Status parse_pattern(const TomlMember& pattern, BlockSpec& block) {
    GLIM_TRY(expect_kind(pattern.value, Kind::kTable, "pattern"));
    TableReader reader(pattern.value, fmt::format("the pattern of stack '{}'", block.name.text));
    GLIM_ASSIGN(const Name anchor_name, reader.need_text("anchor"));
    Anchor anchor = Anchor::kFirst;
    if (anchor_name.text == "last")
      anchor = Anchor::kLast;
    else if (anchor_name.text == "each")
      anchor = Anchor::kEach;
    else if (anchor_name.text != "first") {
      static constexpr std::string_view kAnchors[] = {"first", "last", "each"};
      return invalid_argument(fmt::format("unknown anchor '{}': it is \"first\", \"last\" or \"each\"{}", anchor_name.text,
                                          did_you_mean(anchor_name.text, kAnchors)),
                              anchor_name.where);
    }
    for (const TomlMember& entry : pattern.value.members) {
      if (entry.key == "anchor") continue;
      PatternSpec values;
      values.name = {entry.key, entry.where};
      values.anchor = anchor;
      GLIM_TRY(claim(values.name, fmt::format("a per-layer value of stack '{}'", block.name.text)));
      GLIM_ASSIGN(values.values, to_scalars(entry.value, entry.key));
      if (values.values.empty()) return invalid_argument(fmt::format("the pattern of '{}' is empty", entry.key), entry.value.where);
      for (const Scalar& value : values.values) {
        if ((value.kind == Scalar::Kind::kBool) == (values.values[0].kind == Scalar::Kind::kBool)) continue;
        return invalid_argument(fmt::format("the pattern of '{}' mixes flags and numbers", entry.key), value.where);
      }
      block.pattern.push_back(std::move(values));
    }
    return ok();
  }

  Status parse_param(const TomlMember& member, BlockSpec& block) {
    ParamSpec param;
    param.name = {member.key, member.where};
    GLIM_TRY(expect_identifier(param.name, "a parameter"));
    GLIM_TRY(expect_kind(member.value, Kind::kTable, member.key));
    TableReader reader(member.value, fmt::format("parameter '{}'", member.key));
    GLIM_ASSIGN(const TomlMember* shape, reader.need("shape"));
    GLIM_ASSIGN(param.shape, to_scalars(shape->value, "shape"));
    GLIM_ASSIGN(const Name dtype, reader.take_text("dtype"));
    if (!dtype.empty()) {
      GLIM_ASSIGN(param.dtype, parse_spec_dtype(dtype));
      if (param.dtype == SpecDType::kI32) return invalid_argument("a parameter is \"real\" or \"acc\", not \"i32\"", dtype.where);
    }
    GLIM_ASSIGN(const TomlMember* init, reader.need("init"));
    GLIM_TRY(parse_init(*init, param));
    GLIM_ASSIGN(param.hf, reader.take_text("hf"));
    const bool has_layer = param.hf.text.find("{i}") != std::string::npos;
    if (!param.hf.empty() && has_layer != block.count.has_value()) {
      return invalid_argument(has_layer ? "'hf' has {i}, but a block has no layers" : "'hf' needs {i}: every layer has a tensor of its own",
                              param.hf.where);
    }
    GLIM_ASSIGN(param.tied_to, reader.take_text("tied_to"));
    GLIM_ASSIGN(param.tied_when, reader.take_scalar("tied_when"));
    if (param.tied_when && param.tied_to.empty())
      return invalid_argument("'tied_when' means nothing without 'tied_to'", param.tied_when->where);
    if (!param.tied_to.empty() && block.count) return invalid_argument("a parameter of a stack cannot be tied", param.tied_to.where);
    GLIM_ASSIGN(param.when, reader.take_scalar("when"));
    GLIM_TRY(reader.finish());
    block.params.push_back(std::move(param));
    return ok();
  }

  static Status parse_init(const TomlMember& member, ParamSpec& param) {
    GLIM_TRY(expect_kind(member.value, Kind::kTable, "init"));
    TableReader reader(member.value, "init");
    GLIM_ASSIGN(const std::optional<Scalar> normal, reader.take_scalar("normal"));
    GLIM_ASSIGN(const std::optional<Scalar> constant, reader.take_scalar("constant"));
    GLIM_TRY(reader.finish());
    if (normal.has_value() == constant.has_value()) {
      return invalid_argument("'init' is either { normal = DEVIATION } or { constant = VALUE }", member.value.where);
    }
    param.init = normal ? InitKind::kNormal : InitKind::kConstant;
    param.init_value = normal ? *normal : *constant;
    return ok();
  }

  Status parse_op(const TomlValue& value, BlockSpec& block) {
    GLIM_TRY(expect_kind(value, Kind::kTable, "op"));
    OpSpec op;
    op.where = value.where;
    TableReader reader(value, "an op");
    GLIM_ASSIGN(const TomlMember* out, reader.need("out"));
    GLIM_ASSIGN(op.out, to_names(out->value, "out"));
    if (op.out.empty()) return invalid_argument("'out' names no value", out->value.where);
    for (const Name& name : op.out) GLIM_TRY(expect_identifier(name, "a value"));
    GLIM_ASSIGN(op.op, reader.need_text("op"));
    GLIM_ASSIGN(op.when, reader.take_scalar("when"));
    for (const TomlMember& member : value.members) {
      if (member.key == "out" || member.key == "op" || member.key == "when") continue;
      OpArgument argument{{member.key, member.where}, {}, member.value.kind == Kind::kArray};
      if (argument.is_list) {
        GLIM_ASSIGN(argument.values, to_scalars(member.value, member.key));
      } else {
        GLIM_ASSIGN(Scalar scalar, to_scalar(member.value, member.key));
        argument.values.push_back(std::move(scalar));
      }
      op.arguments.push_back(std::move(argument));
    }
    block.ops.push_back(std::move(op));
    return ok();
  }

  // `flow` puts the blocks in their order; each one stands in it once.
  Status order_blocks(TableReader& top) {
    GLIM_ASSIGN(const TomlMember* flow, top.need("flow"));
    GLIM_TRY(expect_kind(flow->value, Kind::kArray, "flow"));
    GLIM_ASSIGN(const std::vector<Name> order, to_names(flow->value, "flow"));
    std::vector<BlockSpec> ordered;
    std::vector<std::string> known;
    for (const BlockSpec& block : spec_.blocks) known.push_back(block.name.text);
    for (const Name& name : order) {
      if (std::count_if(ordered.begin(), ordered.end(), [&](const BlockSpec& b) { return b.name.text == name.text; }) > 0) {
        return invalid_argument(fmt::format("'{}' stands in the flow twice", name.text), name.where);
      }
      const auto block =
          std::find_if(spec_.blocks.begin(), spec_.blocks.end(), [&](const BlockSpec& b) { return b.name.text == name.text; });
      if (block == spec_.blocks.end())
        return invalid_argument(fmt::format("unknown block '{}'{}", name.text, did_you_mean(name.text, known)), name.where);
      ordered.push_back(*block);
    }
    for (const BlockSpec& block : spec_.blocks) {
      if (std::count_if(order.begin(), order.end(), [&](const Name& n) { return n.text == block.name.text; }) == 0) {
        return invalid_argument(fmt::format("'{}' does not stand in the flow, so it would never run", block.name.text), block.name.where);
      }
    }
    spec_.blocks = std::move(ordered);
    return ok();
  }

  Status parse_output(const TomlMember& member) {
    OutputSpec output;
    output.name = {member.key, member.where};
    GLIM_TRY(expect_identifier(output.name, "an output"));
    if (member.value.kind == Kind::kTable) {
      TableReader reader(member.value, fmt::format("output '{}'", member.key));
      GLIM_ASSIGN(output.layers, reader.need_text("layers"));
      GLIM_ASSIGN(output.value, reader.need_text("value"));
      GLIM_TRY(reader.finish());
    } else {
      GLIM_ASSIGN(output.value, to_text(member.value, member.key));
    }
    spec_.outputs.push_back(std::move(output));
    return ok();
  }

  Status parse_vocabulary(TableReader& top) {
    const TomlMember* table = top.take("vocabulary");
    if (table == nullptr) return ok();
    GLIM_TRY(expect_kind(table->value, Kind::kTable, "vocabulary"));
    TableReader reader(table->value, "the vocabulary");
    GLIM_ASSIGN(const Name kind, reader.need_text("kind"));
    if (kind.text != "bytes")
      return invalid_argument(fmt::format("unknown vocabulary '{}': the only kind is \"bytes\"", kind.text), kind.where);
    spec_.vocabulary = kind.text;
    return reader.finish();
  }

  // ---- [hf]

  Status parse_hf(TableReader& top) {
    const TomlMember* table = top.take("hf");
    if (table == nullptr) return ok();
    GLIM_TRY(expect_kind(table->value, Kind::kTable, "hf"));
    TableReader reader(table->value, "[hf]");
    GLIM_ASSIGN(spec_.hf.model_type, reader.need_text("model_type"));
    if (const TomlMember* ignored = reader.take("ignore_tensors")) {
      GLIM_ASSIGN(const std::vector<Name> patterns, to_names(ignored->value, "ignore_tensors"));
      for (const Name& pattern : patterns) spec_.hf.ignore_tensors.push_back(pattern.text);
    }
    GLIM_TRY(for_each(reader, "values", [&](const TomlMember& m) { return parse_hf_value(m); }));
    GLIM_TRY(for_each(reader, "layers", [&](const TomlMember& m) { return parse_hf_stack(m); }));
    GLIM_TRY(for_each(reader, "expect", [&](const TomlMember& m) { return parse_hf_expectation(m); }));
    return reader.finish();
  }

  Status parse_hf_value(const TomlMember& member) {
    HfValue value{{member.key, member.where}, {}, {}};
    const auto entry = quantities_.find(member.key);
    if (entry == quantities_.end() || (entry->second != "a dimension" && entry->second != "a constant" && entry->second != "a flag")) {
      std::vector<std::string> known;
      for (const auto& [name, what] : quantities_) known.push_back(name);
      return invalid_argument(
          fmt::format("[hf.values] fills dimensions, constants and flags; '{}' is none{}", member.key, did_you_mean(member.key, known)),
          member.where);
    }
    if (member.value.kind == Kind::kTable) {
      TableReader reader(member.value, fmt::format("[hf.values] '{}'", member.key));
      GLIM_ASSIGN(const TomlMember* path, reader.need("path"));
      GLIM_ASSIGN(value.paths, to_names(path->value, "path"));
      GLIM_ASSIGN(value.otherwise, reader.take_scalar("otherwise"));
      GLIM_TRY(reader.finish());
    } else {
      GLIM_ASSIGN(value.paths, to_names(member.value, member.key));
    }
    spec_.hf.values.push_back(std::move(value));
    return ok();
  }

  Status parse_hf_stack(const TomlMember& stack) {
    GLIM_TRY(expect_kind(stack.value, Kind::kTable, stack.key));
    for (const TomlMember& member : stack.value.members) GLIM_TRY(parse_hf_layers({stack.key, stack.where}, member));
    return ok();
  }

  Status parse_hf_layers(const Name& stack, const TomlMember& member) {
    HfLayers layers;
    layers.stack = stack;
    layers.name = {member.key, member.where};
    const BlockSpec* block = spec_.find_block(stack.text);
    if (block == nullptr || !block->count) return invalid_argument(fmt::format("'{}' is no stack", stack.text), stack.where);
    std::vector<std::string> known;
    for (const PatternSpec& entry : block->pattern) known.push_back(entry.name.text);
    if (std::find(known.begin(), known.end(), member.key) == known.end()) {
      return invalid_argument(
          fmt::format("stack '{}' has no per-layer value '{}'{}", stack.text, member.key, did_you_mean(member.key, known)), member.where);
    }
    GLIM_TRY(expect_kind(member.value, Kind::kTable, member.key));
    TableReader reader(member.value, fmt::format("[hf.layers] '{}'", member.key));
    GLIM_ASSIGN(layers.path, reader.need_text("path"));
    const auto parse_mapping = [&](const TomlMember& mapping) -> Status {
      GLIM_ASSIGN(Scalar value, to_scalar(mapping.value, mapping.key));
      layers.map.push_back({{mapping.key, mapping.where}, std::move(value)});
      return ok();
    };
    GLIM_TRY(for_each(reader, "map", parse_mapping));
    GLIM_ASSIGN(layers.nonzero, reader.take_flag("nonzero", false));
    GLIM_ASSIGN(layers.equals, reader.take_scalar("equals"));
    GLIM_TRY(reader.finish());
    spec_.hf.layers.push_back(std::move(layers));
    return ok();
  }

  // A value, an array of allowed values, or { absent = true }.
  Status parse_hf_expectation(const TomlMember& member) {
    HfExpectation expectation{{member.key, member.where}, {}};
    if (member.value.kind == Kind::kTable) {
      TableReader reader(member.value, fmt::format("[hf.expect] '{}'", member.key));
      GLIM_ASSIGN(const bool absent, reader.take_flag("absent", false));
      GLIM_TRY(reader.finish());
      if (!absent) return invalid_argument("an expectation is a value, an array of values or { absent = true }", member.value.where);
    } else if (member.value.kind == Kind::kArray) {
      GLIM_ASSIGN(expectation.allowed, to_scalars(member.value, member.key));
    } else {
      GLIM_ASSIGN(Scalar value, to_scalar(member.value, member.key));
      expectation.allowed.push_back(std::move(value));
    }
    spec_.hf.expect.push_back(std::move(expectation));
    return ok();
  }

  ModelSpec spec_;
  std::map<std::string, std::string> quantities_;  // name -> what it is
  size_t num_ops_ = 0;
};

}  // namespace

const BlockSpec* ModelSpec::find_block(std::string_view name) const {
  const auto found = std::find_if(blocks.begin(), blocks.end(), [&](const BlockSpec& block) { return block.name.text == name; });
  return found == blocks.end() ? nullptr : &*found;
}

Result<ModelSpec> load_spec(const std::string& file) {
  GLIM_ASSIGN(const std::string text, read_text_file(file, kMaxTomlBytes));
  return parse_spec(text, file);
}

Result<ModelSpec> parse_spec(std::string_view text, const std::string& file) {
  std::vector<std::string> chain;
  GLIM_ASSIGN(TomlValue tree, parse_toml(text, file));
  GLIM_ASSIGN(const TomlValue root, with_bases(std::move(tree), file, chain));
  return SpecParser().parse(root, file);
}

}  // namespace glim
