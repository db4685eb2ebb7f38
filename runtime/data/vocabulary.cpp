#include "runtime/data/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/names.h"

namespace glim {

Result<Vocabulary> vocabulary_of(const ModelSpec& spec) {
  const auto input = std::find_if(spec.inputs.begin(), spec.inputs.end(), [](const InputSpec& i) { return i.name.text == "tokens"; });
  if (input == spec.inputs.end() || !input->range) {
    return invalid_argument(fmt::format("{}: the model has no input 'tokens' with a 'range', so its vocabulary is not known", spec.file));
  }
  Names names(spec);
  GLIM_ASSIGN(const int64_t highest, names.integer((*input->range)[1]));
  if (highest < 0 || highest >= INT32_MAX)
    return invalid_argument(fmt::format("the highest token is {}, expected 0 to 2^31 - 2", highest), (*input->range)[1].where);
  return Vocabulary{highest + 1, spec.vocabulary == "bytes"};
}

void encode(std::string_view text, std::vector<int32_t>& ids) {
  ids.reserve(ids.size() + text.size());
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
}

}  // namespace glim
