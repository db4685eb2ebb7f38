#pragma once
#include <string_view>

#include "engine/graph.h"

namespace glim {

// Reads the text that print (engine/print.h) writes. Values may be numbered freely, each before its use; attributes come in any
// order, those left out have their defaults; the types of a node's outputs may be left out, and are checked when they are there.
// `//` starts a comment. The text may be hostile: every error is a user error (kInvalidFile) with file:line:column, and memory
// is proportional to the text.
[[nodiscard]] Result<Graph> parse(std::string_view text, const OpTable& table, std::string_view file = "");

}  // namespace glim
