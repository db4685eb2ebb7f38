// libFuzzer: any bytes as a JSON Lines file, for a vocabulary of bytes and for a small one.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/data/json_lines.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace glim;
  const std::string_view content(reinterpret_cast<const char*>(data), size);
  const std::string ignored[] = {"id"};
  for (const Vocabulary& vocabulary : {Vocabulary{256, true}, Vocabulary{70000, false}}) {
    const Result<TokenBlock> block = read_json_lines(content, "fuzz.jsonl", vocabulary, ignored);
    if (!block) {
      GLIM_CHECK(block.error().code == ErrorCode::kInvalidFile && block.error().where.line > 0, "an error has its line");
      continue;
    }
    Checksum hash;
    GLIM_CHECK(bool(block->add_to(hash, vocabulary.size)), "tokens are in the vocabulary");
    GLIM_CHECK(static_cast<size_t>(block->num_tokens()) <= size, "no more tokens than bytes");
    GLIM_CHECK(block->num_labels(0, block->num_tokens()) <= block->num_tokens(), "a label is a token");
  }
  return 0;
}
