#include "runtime/data/token_block.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace glim {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are stored with the lowest byte first");

constexpr uint8_t kAllLabels = 0xff;

template <class Function>
void with_token_type(int token_bytes, const Function& function) {
  if (token_bytes == 1) return function(uint8_t{});
  if (token_bytes == 2) return function(uint16_t{});
  return function(uint32_t{});
}

bool bit(std::span<const uint8_t> bits, int64_t i) { return (bits[static_cast<size_t>(i / 8)] >> (i % 8) & 1) != 0; }

}  // namespace

TokenBlock::TokenBlock(std::string path, int64_t vocabulary_size)
    : path_(std::move(path)), token_bytes_(bytes_per_token(vocabulary_size)) {}
TokenBlock::TokenBlock(MappedFile file, int token_bytes) : path_(file.path()), token_bytes_(token_bytes), file_(std::move(file)) {}

TokenBlock TokenBlock::of_bytes(MappedFile file) {
  TokenBlock block(std::move(file), 1);
  block.mapped_tokens_ = block.file_->bytes();
  block.starts_.push_back(block.mapped_tokens_.size());
  return block;
}

TokenBlock TokenBlock::of_packed(MappedFile file, int token_bytes, std::span<const uint64_t> starts, std::span<const std::byte> tokens,
                                 std::span<const uint8_t> labels) {
  TokenBlock block(std::move(file), token_bytes);
  block.mapped_starts_ = starts;
  block.mapped_tokens_ = tokens;
  block.mapped_labels_ = labels;
  return block;
}

void TokenBlock::add_document(std::span<const int32_t> ids, std::span<const uint8_t> is_label) {
  const auto before = static_cast<size_t>(num_tokens()), after = before + ids.size();
  tokens_.resize(after * static_cast<size_t>(token_bytes_));
  with_token_type(token_bytes_, [&](auto token) {
    for (size_t i = 0; i < ids.size(); ++i) {
      token = static_cast<decltype(token)>(ids[i]);
      std::memcpy(tokens_.data() + (before + i) * sizeof token, &token, sizeof token);
    }
  });
  starts_.push_back(after);
  const bool all = std::all_of(is_label.begin(), is_label.end(), [](uint8_t label) { return label != 0; });
  if (all && labels_.empty()) return;  // until the first token that is none, no bit is kept
  labels_.resize((before + 7) / 8, kAllLabels);
  labels_.resize((after + 7) / 8, kAllLabels);
  for (size_t i = 0; i < is_label.size(); ++i) {
    const auto mask = static_cast<uint8_t>(1U << (before + i) % 8);
    auto& byte = labels_[(before + i) / 8];
    byte = static_cast<uint8_t>(is_label[i] != 0 ? byte | mask : byte & ~mask);
  }
}

bool TokenBlock::is_label(int64_t token) const { return labels().empty() || bit(labels(), token); }

int64_t TokenBlock::num_labels(int64_t begin, int64_t end) const {
  if (end <= begin) return 0;
  if (labels().empty()) return end - begin;
  int64_t count = 0;
  while (begin < end && begin % 8 != 0) count += bit(labels(), begin++) ? 1 : 0;
  for (; begin + 8 <= end; begin += 8) count += std::popcount(labels()[static_cast<size_t>(begin / 8)]);
  while (begin < end) count += bit(labels(), begin++) ? 1 : 0;
  return count;
}

void TokenBlock::copy_tokens(int64_t begin, std::span<int32_t> out) const {
  with_token_type(token_bytes_, [&](auto token) {
    const std::byte* from = tokens().data() + static_cast<size_t>(begin) * sizeof token;
    for (size_t i = 0; i < out.size(); ++i) {
      std::memcpy(&token, from + i * sizeof token, sizeof token);
      out[i] = static_cast<int32_t>(token);
    }
  });
}

Status TokenBlock::add_to(Checksum& hash, int64_t vocabulary_size, Checksum* also) const {
  constexpr int64_t kChunk = 4096;
  constexpr uint32_t kNoLabel = uint32_t{1} << 31;
  std::vector<int32_t> ids(static_cast<size_t>(std::min(kChunk, num_tokens())));
  std::vector<uint32_t> words(ids.size());
  Checksum one;
  for (int64_t document = 0; document < num_documents(); ++document) {
    const int64_t first = begin(document), end = begin(document + 1);
    one.reset();
    for (int64_t at = first; at < end; at += kChunk) {
      const std::span<int32_t> chunk(ids.data(), static_cast<size_t>(std::min(kChunk, end - at)));
      copy_tokens(at, chunk);
      uint32_t highest = 0;
      for (size_t i = 0; i < chunk.size(); ++i) {
        words[i] = static_cast<uint32_t>(chunk[i]);
        highest = std::max(highest, words[i]);
      }
      if (int64_t{highest} >= vocabulary_size) {
        const auto wrong = std::find_if(words.begin(), words.end(), [&](uint32_t id) { return int64_t{id} >= vocabulary_size; });
        return invalid_file(fmt::format("{}: token {} of document {} is {}, expected 0 to {}", path_, at - first + (wrong - words.begin()),
                                        document, *wrong, vocabulary_size - 1));
      }
      for (size_t i = 0; has_labels() && i < chunk.size(); ++i) {
        if (!is_label(at + static_cast<int64_t>(i))) words[i] |= kNoLabel;
      }
      one.add(std::as_bytes(std::span(words).first(chunk.size())));
    }
    const auto length = static_cast<uint64_t>(end - first);
    one.add(std::as_bytes(std::span(&length, 1)));
    hash.add(one.value());
    if (also != nullptr) also->add(one.value());
  }
  return ok();
}

}  // namespace glim
