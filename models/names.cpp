#include "models/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "engine/suggest.h"
#include "engine/type.h"

namespace glim {
namespace {

constexpr int kMaxNameDepth = 32;  // names that are defined by names

constexpr Scalar::Kind kText = Scalar::Kind::kText;

}  // namespace

Names::Names(const ModelSpec& spec, std::map<std::string, int64_t> runtime_dims) {
  const auto add = [&](const std::vector<NamedScalar>& list, Entry::Kind kind) {
    for (const NamedScalar& item : list) entries_[item.name.text] = {kind, &item, false, false, {}};
  };
  add(spec.dims, Entry::Kind::kDim);
  add(spec.constants, Entry::Kind::kConstant);
  add(spec.flags, Entry::Kind::kFlag);
  for (const RuntimeDim& dim : spec.runtime_dims) {
    Entry entry{Entry::Kind::kRuntimeDim, nullptr, false, false, {}};
    if (const auto given = runtime_dims.find(dim.name.text); given != runtime_dims.end()) {
      entry.known = true;
      entry.value = integer_number(given->second);
    }
    entries_[dim.name.text] = entry;
  }
  for (const BlockSpec& block : spec.blocks) {
    for (const PatternSpec& pattern : block.pattern) layer_names_.insert(pattern.name.text);
  }
}

Status Names::check_all() {
  // In the order of the file, so that the first error is the first one that the reader meets.
  std::vector<std::pair<std::pair<int, int>, std::string>> order;
  for (const auto& [name, entry] : entries_) {
    if (entry.definition == nullptr) continue;
    const SourceLocation& where = entry.definition->name.where;
    order.push_back({{where.line, where.column}, name});
  }
  std::sort(order.begin(), order.end());
  for (const auto& [position, name] : order) {
    Result<Quantity> value = look_up(name, entries_.find(name)->second.definition->name.where);
    if (!value) return std::move(value.error());
  }
  return ok();
}

void Names::enter_layer(const BlockSpec* stack, int64_t layer, int64_t num_layers) {
  stack_ = stack;
  layer_ = layer;
  num_layers_ = num_layers;
}

Result<Quantity> Names::look_up(std::string_view name, const SourceLocation& where) {
  if (stack_ != nullptr) {
    for (const PatternSpec& pattern : stack_->pattern) {
      if (pattern.name.text == name) return layer_value(pattern);
    }
  }
  const auto entry = entries_.find(name);
  if (entry == entries_.end()) return unknown(name, where);
  return evaluate(name, entry->second, where);
}

Result<Quantity> Names::layer_value(const PatternSpec& pattern) {
  const auto size = static_cast<int64_t>(pattern.values.size());
  if (pattern.anchor == Anchor::kEach && size != num_layers_) {
    return invalid_argument(
        fmt::format("'{}' has {} per-layer values, but stack '{}' has {} layers", pattern.name.text, size, stack_->name.text, num_layers_),
        pattern.values.empty() ? pattern.name.where : pattern.values[0].where);
  }
  const int64_t index = pattern.anchor == Anchor::kLast ? (num_layers_ - 1 - layer_) % size : layer_ % size;
  // The values are written in terms of the whole model's names, not of each other.
  const BlockSpec* stack = std::exchange(stack_, nullptr);
  Result<Quantity> value = quantity(pattern.values[static_cast<size_t>(index)]);
  stack_ = stack;
  return value;
}

Result<Quantity> Names::evaluate(std::string_view name, Entry& entry, const SourceLocation& where) {
  if (entry.known) return entry.value;
  if (entry.definition == nullptr) return invalid_argument(fmt::format("runtime dimension '{}' has no value here", name), where);
  const Scalar& scalar = entry.definition->value;
  if (entry.evaluating) return invalid_argument(fmt::format("'{}' is defined in terms of itself: a cycle", name), where);
  if (scalar.kind == kText && scalar.text == "?") {
    const std::string_view what = entry.kind == Entry::Kind::kDim ? "dimension" : "constant";
    return invalid_argument(
        fmt::format("{} '{}' is not set: a file that extends this one, or a Hugging Face config, must set it", what, name), scalar.where);
  }
  if (depth_ >= kMaxNameDepth) return invalid_argument(fmt::format("names are defined by names more than {} deep", kMaxNameDepth), where);
  ++depth_;
  entry.evaluating = true;
  const BlockSpec* stack = std::exchange(stack_, nullptr);  // a model-wide name never depends on the layer
  Result<Quantity> value = Quantity(scalar.flag);
  if (entry.kind == Entry::Kind::kDim) {
    Result<int64_t> dim = extent(scalar, 1, fmt::format("dimension '{}'", name));
    value = dim ? Result<Quantity>(Quantity(integer_number(*dim))) : Result<Quantity>(std::move(dim.error()));
  } else if (entry.kind == Entry::Kind::kConstant) {
    Result<Number> constant = number(scalar);
    value = constant ? Result<Quantity>(Quantity(*constant)) : Result<Quantity>(std::move(constant.error()));
  }
  stack_ = stack;
  entry.evaluating = false;
  --depth_;
  if (value) {
    entry.known = true;
    entry.value = *value;
  }
  return value;
}

Error Names::unknown(std::string_view name, const SourceLocation& where) const {
  if (layer_names_.contains(name))
    return invalid_argument(fmt::format("'{}' has a value only inside the layers of its stack", name), where);
  std::vector<std::string> known;
  for (const auto& [known_name, entry] : entries_) known.push_back(known_name);
  if (stack_ != nullptr) {
    for (const PatternSpec& pattern : stack_->pattern) known.push_back(pattern.name.text);
  }
  return invalid_argument(fmt::format("unknown name '{}'{}", name, did_you_mean(name, known)), where);
}

Result<Quantity> Names::quantity(const Scalar& scalar) {
  if (scalar.kind == Scalar::Kind::kBool) return Quantity(scalar.flag);
  if (scalar.kind == kText && is_identifier(scalar.text)) {
    SourceLocation where = scalar.where;
    if (where.line > 0) ++where.column;  // behind the quote
    return look_up(scalar.text, where);
  }
  GLIM_ASSIGN(const Number value, number(scalar));
  return Quantity(value);
}

Result<Number> Names::number(const Scalar& scalar) {
  switch (scalar.kind) {
    case Scalar::Kind::kInteger: return integer_number(scalar.integer);
    case Scalar::Kind::kReal: return real_number(scalar.real);
    case Scalar::Kind::kBool: return invalid_argument("expected a number, not a flag", scalar.where);
    case Scalar::Kind::kText: break;
  }
  return evaluate_number(scalar.text, scalar.where,
                         [this](std::string_view name, const SourceLocation& where) { return look_up(name, where); });
}

Result<bool> Names::condition(const Scalar& scalar) {
  if (scalar.kind == Scalar::Kind::kBool) return scalar.flag;
  if (scalar.kind != kText) return invalid_argument("expected a flag or a condition, not a number", scalar.where);
  return evaluate_condition(scalar.text, scalar.where,
                            [this](std::string_view name, const SourceLocation& where) { return look_up(name, where); });
}

Result<int64_t> Names::integer(const Scalar& scalar) {
  GLIM_ASSIGN(const Number value, number(scalar));
  if (!value.is_integer)
    return invalid_argument(fmt::format("{} is not an integer", scalar.kind == kText ? fmt::format("'{}' = {}", scalar.text, value.real)
                                                                                     : fmt::format("{}", value.real)),
                            scalar.where);
  return value.integer;
}

Result<int64_t> Names::extent(const Scalar& scalar, int64_t minimum, std::string_view what) {
  GLIM_ASSIGN(const int64_t value, integer(scalar));
  const std::string shown =
      scalar.kind == kText && scalar.text != std::to_string(value) ? fmt::format("'{}' = {}", scalar.text, value) : std::to_string(value);
  if (value < minimum) return invalid_argument(fmt::format("{} must be at least {}, not {}", what, minimum, shown), scalar.where);
  if (value > kMaxDim) return invalid_argument(fmt::format("{} must be at most {}, not {}", what, kMaxDim, shown), scalar.where);
  return value;
}

}  // namespace glim
