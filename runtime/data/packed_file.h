#pragma once
// Tokens on disk, ready to be mapped; `glim data pack` writes them. Little-endian:
//   PackedHeader                              80 bytes
//   starts    u64[num_documents + 1]          first token of each document, and the number of tokens
//   tokens    u8, u16 or u32[num_tokens]
//   labels    bits[num_tokens], lowest first  only with kHasLabels; a token without its bit is not counted by the loss
// and nothing else. The digest is that of the documents (documents.h), so one read both verifies the file and identifies its content.
#include <cstdint>
#include <span>
#include <string>

#include "runtime/data/documents.h"

namespace glim {

struct PackedHeader {
  static constexpr char kMagic[] = "GLIMTOKS";
  static constexpr uint32_t kVersion = 1;
  static constexpr uint64_t kHasLabels = 1, kIsBytes = 2, kAllFlags = 3;  // kIsBytes: token i is byte i

  char magic[8];
  uint32_t version, token_bytes;  // 1, 2 or 4: the least that holds vocabulary_size - 1
  uint64_t vocabulary_size, num_documents, num_tokens, flags;
  Hash128 content;  // of the documents
  Hash128 header;   // XXH3 of the bytes before it
};
static_assert(sizeof(PackedHeader) == 80);

// The file appears complete or not at all. Errors: kIo.
[[nodiscard]] Status write_packed(const Documents& documents, const Vocabulary& vocabulary, const std::string& path);

// Validates all but the tokens' values; TokenBlock::add_to and the header's digest do the rest. Errors: kInvalidFile.
struct PackedFile {
  PackedHeader header;
  TokenBlock block;
};
[[nodiscard]] Result<PackedFile> open_packed(MappedFile file);

}  // namespace glim
