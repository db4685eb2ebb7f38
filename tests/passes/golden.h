#pragma once
// Golden text for passes: the text before, the text after.
#include <gtest/gtest.h>

#include <string>

#include "engine/parse.h"
#include "engine/pass.h"
#include "engine/print.h"
#include "engine/verify.h"

namespace glim {

inline Graph read_graph(std::string_view text, const OpTable& table) {
  Result<Graph> graph = parse(text, table);
  GLIM_CHECK(bool(graph), graph.error().to_string());
  return *std::move(graph);
}

inline std::string after(PassFn pass, const Graph& graph) {
  const Result<Rewritten> rewritten = pass(graph, {});
  GLIM_CHECK(bool(rewritten), rewritten.error().to_string());
  const Status verified = verify(rewritten->graph);
  EXPECT_TRUE(verified) << verified.error().message;
  return print(rewritten->graph);
}

inline void expect_rewrite(PassFn pass, const OpTable& table, std::string_view before, std::string_view expected) {
  EXPECT_EQ(after(pass, read_graph(before, table)), expected);
}
// A negative twin. The text must be as print writes it.
inline void expect_unchanged(PassFn pass, const OpTable& table, std::string_view text) { expect_rewrite(pass, table, text, text); }

}  // namespace glim
