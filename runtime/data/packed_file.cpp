#include "runtime/data/packed_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "runtime/atomic_file.h"

namespace glim {
namespace {

constexpr int64_t kChunk = 1 << 15;  // tokens written at once; a multiple of 8

Hash128 header_digest(const PackedHeader& header) {
  Checksum hash;
  hash.add(std::as_bytes(std::span(&header, 1)).first(offsetof(PackedHeader, header)));
  return hash.value();
}

Status write_starts(AtomicFile& file, const Documents& documents) {
  std::vector<uint64_t> starts;
  const auto flush = [&] {
    Status status = file.write(std::as_bytes(std::span(starts)));
    starts.clear();
    return status;
  };
  uint64_t first = 0;
  for (const TokenBlock& block : documents.blocks) {
    for (int64_t document = 0; document < block.num_documents(); ++document) {
      starts.push_back(first + static_cast<uint64_t>(block.begin(document)));
      if (static_cast<int64_t>(starts.size()) == kChunk) GLIM_TRY(flush());
    }
    first += static_cast<uint64_t>(block.num_tokens());
  }
  starts.push_back(first);
  return flush();
}

Status write_tokens(AtomicFile& file, const Documents& documents, size_t token_bytes) {
  std::vector<int32_t> ids(kChunk);
  std::vector<std::byte> bytes;
  for (const TokenBlock& block : documents.blocks) {
    for (int64_t at = 0; at < block.num_tokens(); at += kChunk) {
      const std::span chunk = std::span(ids).first(static_cast<size_t>(std::min(kChunk, block.num_tokens() - at)));
      block.copy_tokens(at, chunk);
      bytes.resize(chunk.size() * token_bytes);
      for (size_t i = 0; i < chunk.size(); ++i) std::memcpy(bytes.data() + i * token_bytes, &chunk[i], token_bytes);
      GLIM_TRY(file.write(bytes));
    }
  }
  return ok();
}

Status write_labels(AtomicFile& file, const Documents& documents) {
  std::vector<uint8_t> bits;
  int64_t count = 0;
  for (const TokenBlock& block : documents.blocks) {
    for (int64_t i = 0; i < block.num_tokens(); ++i, ++count) {
      if (count % 8 == 0) {
        if (static_cast<int64_t>(bits.size()) == kChunk) {
          GLIM_TRY(file.write(std::as_bytes(std::span(bits))));
          bits.clear();
        }
        bits.push_back(0);
      }
      if (block.is_label(i)) bits.back() = static_cast<uint8_t>(bits.back() | 1U << count % 8);
    }
  }
  return file.write(std::as_bytes(std::span(bits)));
}

}  // namespace

Status write_packed(const Documents& documents, const Vocabulary& vocabulary, const std::string& path) {
  PackedHeader header{};
  std::memcpy(header.magic, PackedHeader::kMagic, sizeof header.magic);
  header.version = PackedHeader::kVersion;
  header.token_bytes = static_cast<uint32_t>(TokenBlock::bytes_per_token(vocabulary.size));
  header.vocabulary_size = static_cast<uint64_t>(vocabulary.size);
  header.flags = vocabulary.is_bytes ? PackedHeader::kIsBytes : 0;
  for (const TokenBlock& block : documents.blocks) {
    header.num_documents += static_cast<uint64_t>(block.num_documents());
    header.num_tokens += static_cast<uint64_t>(block.num_tokens());
    if (block.has_labels()) header.flags |= PackedHeader::kHasLabels;
  }
  header.content = documents.digest;
  header.header = header_digest(header);
  GLIM_ASSIGN(AtomicFile file, AtomicFile::create(path));
  GLIM_TRY(file.write(std::as_bytes(std::span(&header, 1))));
  GLIM_TRY(write_starts(file, documents));
  GLIM_TRY(write_tokens(file, documents, header.token_bytes));
  if ((header.flags & PackedHeader::kHasLabels) != 0) GLIM_TRY(write_labels(file, documents));
  return file.commit();
}

Result<PackedFile> open_packed(MappedFile file) {
  const std::span<const std::byte> bytes = file.bytes();
  const auto bad = [&](std::string_view problem) { return invalid_file(fmt::format("{}: {}", file.path(), problem)); };
  PackedHeader header{};
  if (bytes.size() < sizeof header)
    return bad(fmt::format("{} bytes, expected a header of {}: this is no packed file, or it is cut off", bytes.size(), sizeof header));
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, PackedHeader::kMagic, sizeof header.magic) != 0)
    return bad(fmt::format("it does not begin with {}: `glim data pack` did not write it", PackedHeader::kMagic));
  if (header.version != PackedHeader::kVersion)
    return bad(fmt::format("version {} of the format, this program reads version {}", header.version, PackedHeader::kVersion));
  if (header.header != header_digest(header)) return bad("the header is damaged: its checksum differs");
  // From here on the header says what its writer meant; whether that is sensible is another question.
  if (header.vocabulary_size < 1 || header.vocabulary_size > INT32_MAX)
    return bad(fmt::format("a vocabulary of {} tokens, expected 1 to 2^31 - 1", header.vocabulary_size));
  const int token_bytes = TokenBlock::bytes_per_token(static_cast<int64_t>(header.vocabulary_size));
  if (header.token_bytes != static_cast<uint32_t>(token_bytes)) {
    return bad(fmt::format("{} bytes per token, expected {} for a vocabulary of {} tokens", header.token_bytes, token_bytes,
                           header.vocabulary_size));
  }
  if ((header.flags & ~PackedHeader::kAllFlags) != 0) return bad(fmt::format("unknown flags {:#x}", header.flags));
  const bool has_labels = (header.flags & PackedHeader::kHasLabels) != 0;
  const uint64_t rest = bytes.size() - sizeof header;
  // Both counts are bounded by the file's length first, so that the sum cannot overflow.
  const bool plausible = header.num_documents < rest / 8 && header.num_tokens <= rest / header.token_bytes;
  const uint64_t starts_bytes = plausible ? (header.num_documents + 1) * 8 : 0,
                 tokens_bytes = plausible ? header.num_tokens * header.token_bytes : 0,
                 labels_bytes = plausible && has_labels ? (header.num_tokens + 7) / 8 : 0;
  if (!plausible || starts_bytes + tokens_bytes + labels_bytes != rest) {
    return bad(fmt::format("{} bytes after the header do not hold {} documents and {} tokens: the file is cut off or was changed", rest,
                           header.num_documents, header.num_tokens));
  }
  const std::byte* data = bytes.data() + sizeof header;  // aligned to 8: pages and the header are
  const std::span starts(reinterpret_cast<const uint64_t*>(data), header.num_documents + 1);
  const std::span labels(reinterpret_cast<const uint8_t*>(data + starts_bytes + tokens_bytes), labels_bytes);
  if (starts.front() != 0) return bad(fmt::format("document 0 starts at token {}, expected 0", starts.front()));
  if (const auto fall = std::is_sorted_until(starts.begin(), starts.end()); fall != starts.end())
    return bad(fmt::format("document {} ends before it starts", fall - starts.begin() - 1));
  if (starts.back() != header.num_tokens)
    return bad(fmt::format("the last document ends at token {}, expected {}", starts.back(), header.num_tokens));
  if (has_labels && header.num_tokens % 8 != 0 && labels.back() >> header.num_tokens % 8 != 0)
    return bad("bits after the last label are set");
  const std::span tokens(data + starts_bytes, tokens_bytes);
  return PackedFile{header, TokenBlock::of_packed(std::move(file), token_bytes, starts, tokens, labels)};
}

}  // namespace glim
