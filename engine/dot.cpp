#include "engine/dot.h"

#include <fmt/format.h>

#include <map>

namespace glim {
namespace {

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string node_line(const Graph& graph, NodeId n) {
  if (graph.is_leaf(n)) {
    const Leaf& leaf = graph.leaf(graph.output(n));
    return fmt::format("n{} [shape=ellipse,label=\"{}\\n{} {}\"];", n.index, escape(leaf.name), to_string(leaf.kind),
                       to_string(graph.type(leaf.value)));
  }
  return fmt::format("n{} [label=\"{}\"{}];", n.index, escape(graph.def(n).name),
                     graph.origin(n).is_vjp ? ",style=filled,fillcolor=\"#dde8f5\"" : "");
}

}  // namespace

std::string to_dot(const Graph& graph) {
  std::string text =
      "digraph glim {\n  rankdir=TB; node [shape=box,fontname=\"Helvetica\",fontsize=10]; edge [fontname=\"Helvetica\",fontsize=8];\n";
  std::map<uint32_t, std::string> clusters;  // by interned path, in the order of first use
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) clusters[graph.origin({n}).path] += "    " + node_line(graph, {n}) + "\n";
  for (const auto& [path, nodes] : clusters) {
    const std::string& name = graph.text(path);
    text += name.empty() ? nodes : fmt::format("  subgraph \"cluster_{0}\" {{ label=\"{0}\"; color=gray;\n{1}  }}\n", escape(name), nodes);
  }
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    for (const ValueId v : graph.inputs({n})) {
      if (v.valid()) text += fmt::format("  n{} -> n{} [label=\"{}\"];\n", graph.producer(v).index, n, to_string(graph.type(v)));
    }
  }
  for (const NamedValue& output : graph.outputs()) {
    text += fmt::format("  \"out_{0}\" [shape=doubleoctagon,label=\"{0}\"];\n  n{1} -> \"out_{0}\";\n", escape(output.name),
                        graph.producer(output.value).index);
  }
  for (const StateUpdate& update : graph.updates()) {
    text += fmt::format("  n{} -> n{} [style=dashed,constraint=false,label=\"update\"];\n", graph.producer(update.next).index,
                        graph.producer(update.state).index);
  }
  return text + "}\n";
}

}  // namespace glim
