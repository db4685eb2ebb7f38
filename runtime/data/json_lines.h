#pragma once
// JSON Lines: a document per line, one of
//   {"text": "..."}                                    the loss counts every token
//   {"prompt": "...", "completion": "..."}             the loss counts the completion only; its first token is predicted from the prompt
//   {"input_ids": [..], "labels": [..]}                labels: -100 (does not count) or the token at the same place, as in Hugging Face:
//                                                      they are not shifted. Without labels every token counts
// Lines of white space are skipped. A key that is repeated, unknown (and not in ignored_keys), or holds something else is an error.
#include <span>
#include <string_view>

#include "runtime/data/token_block.h"

namespace glim {

// `path` is for messages only. Errors: kInvalidFile at the line.
[[nodiscard]] Result<TokenBlock> read_json_lines(std::string_view content, const std::string& path, const Vocabulary& vocabulary,
                                                 std::span<const std::string> ignored_keys = {});

}  // namespace glim
