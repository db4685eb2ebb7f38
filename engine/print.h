#pragma once
#include <string>

#include "engine/graph.h"

namespace glim {

struct PrintOptions {
  bool origins = false;  // a comment on each line: where the node comes from
};
// The text of a graph, one statement a line, in tape order:
//   %0 = parameter "decoder.0.q_proj" : f32[64,48]
//   %7, %8 = attention(%1, %2, %3, _) {window=8, scale=0.25} : f32[32,64], f32[32,4]  // decoder.0 (file.toml:12:3)
//   output "loss" = %9
//   update %1 = %12
// `_` is an absent operand. Attributes that have their default are left out; floats are the shortest text that reads back to the
// same bits. parse (engine/parse.h) gives the same graph again, origins excepted.
[[nodiscard]] std::string print(const Graph& graph, const PrintOptions& options = {});
// One attribute, "window=8": for messages.
[[nodiscard]] std::string print_attr(const AttrSpec& spec, std::span<const uint32_t> attr_words, size_t k);

}  // namespace glim
