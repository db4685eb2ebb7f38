#pragma once
// How text becomes token ids, and which ids a model knows.
#include <cstdint>
#include <string_view>
#include <vector>

#include "models/spec.h"

namespace glim {

struct Vocabulary {
  int64_t size = 0;       // ids are 0 to size - 1; at most 2^31 - 1
  bool is_bytes = false;  // token i is byte i. Otherwise there is no tokenizer: documents must be token ids
};

// Of a model whose input "tokens" has a range. [vocabulary] of its file says whether tokens are bytes.
[[nodiscard]] Result<Vocabulary> vocabulary_of(const ModelSpec& spec);

// The one place where text becomes ids; appends. Only for a vocabulary of bytes.
void encode(std::string_view text, std::vector<int32_t>& ids);
// The end of a message about text for a model without it.
inline constexpr std::string_view kNoTokenizer = "but the model's file does not say [vocabulary] kind = \"bytes\" (token i is byte i)";

}  // namespace glim
