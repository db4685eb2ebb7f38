#include "engine/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace glim {
namespace {

using Out = std::back_insert_iterator<std::string>;

void print_name(Out out, std::string_view name) {
  *out++ = '"';
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      fmt::format_to(out, "\\{}", c);
    else if (byte < 0x20 || byte == 0x7f)
      fmt::format_to(out, "\\x{:02x}", byte);
    else
      *out++ = c;
  }
  *out++ = '"';
}

void print_attrs(Out out, const Graph& graph, NodeId n) {
  const std::span<const AttrSpec> specs = graph.def(n).attrs;
  const std::span<const uint32_t> words = graph.attr_words(n);
  const std::vector<uint32_t> defaults = default_words(specs);
  bool any = false;
  for (size_t k = 0; k < specs.size(); ++k) {
    if (!specs[k].required && integer_at(words, k) == integer_at(defaults, k)) continue;  // compared as bits, so -0.0 is printed
    fmt::format_to(out, "{}{}", any ? ", " : " {", print_attr(specs[k], words, k));
    any = true;
  }
  if (any) *out++ = '}';
}

void print_origin(Out out, const Graph& graph, NodeId n) {
  std::string origin = graph.describe_origin(n);
  if (origin.empty()) return;
  std::replace_if(
      origin.begin(), origin.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, '?');  // a comment is one line
  fmt::format_to(out, "  // {}", origin);
}

void print_node(Out out, const Graph& graph, NodeId n) {
  for (uint32_t k = 0; k < graph.node(n).num_outputs; ++k) fmt::format_to(out, "{}%{}", k == 0 ? "" : ", ", graph.output(n, k).index);
  if (graph.is_leaf(n)) {
    const Leaf& leaf = graph.leaf(graph.output(n));
    fmt::format_to(out, " = {} ", to_string(leaf.kind));
    print_name(out, leaf.name);
  } else {
    fmt::format_to(out, " = {}(", graph.def(n).name);
    std::string_view separator;
    for (const ValueId v : graph.inputs(n)) {
      v.valid() ? fmt::format_to(out, "{}%{}", separator, v.index) : fmt::format_to(out, "{}_", separator);
      separator = ", ";
    }
    *out++ = ')';
    print_attrs(out, graph, n);
  }
  for (uint32_t k = 0; k < graph.node(n).num_outputs; ++k)
    fmt::format_to(out, "{}{}", k == 0 ? " : " : ", ", to_string(graph.type(graph.output(n, k))));
}

}  // namespace

std::string print_attr(const AttrSpec& spec, std::span<const uint32_t> attr_words, size_t k) {
  switch (spec.kind) {
    case AttrKind::kReal: return fmt::format("{}={}", spec.name, real_at(attr_words, k));
    case AttrKind::kInteger: return fmt::format("{}={}", spec.name, integer_at(attr_words, k));
    case AttrKind::kBool: return fmt::format("{}={}", spec.name, integer_at(attr_words, k) != 0);
    case AttrKind::kEnum: {
      const int64_t choice = integer_at(attr_words, k);
      const bool known = choice >= 0 && choice < static_cast<int64_t>(spec.choices.size());
      return fmt::format("{}={}", spec.name, known ? spec.choices[static_cast<size_t>(choice)] : "?");
    }
  }
  return {};
}

std::string print(const Graph& graph, const PrintOptions& options) {
  std::string text;
  const Out out(text);
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    print_node(out, graph, {n});
    if (options.origins) print_origin(out, graph, {n});
    text += '\n';
  }
  for (const NamedValue& output : graph.outputs()) {
    text += "output ";
    print_name(out, output.name);
    fmt::format_to(out, " = %{}\n", output.value.index);
  }
  for (const StateUpdate& update : graph.updates()) fmt::format_to(out, "update %{} = %{}\n", update.state.index, update.next.index);
  return text;
}

}  // namespace glim
