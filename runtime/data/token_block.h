#pragma once
// The tokens of documents that lie one after another, and which of them are labels: those that the loss counts when they are
// predicted. Either the file itself, mapped, or memory.
#include <optional>
#include <vector>

#include "runtime/checksum.h"
#include "runtime/data/vocabulary.h"
#include "runtime/mapped_file.h"

namespace glim {

class TokenBlock {
 public:
  // One document: the bytes of a file.
  [[nodiscard]] static TokenBlock of_bytes(MappedFile file);
  // What a packed file holds; the spans point into `file`. token_bytes is 1, 2 or 4; starts is [num_documents + 1], from 0 to the
  // number of tokens and never falling; labels has one bit per token, lowest first, or is empty: every token is one.
  [[nodiscard]] static TokenBlock of_packed(MappedFile file, int token_bytes, std::span<const uint64_t> starts,
                                            std::span<const std::byte> tokens, std::span<const uint8_t> labels);
  // In memory, to be filled. A token takes as few bytes as the vocabulary allows.
  TokenBlock(std::string path, int64_t vocabulary_size);

  // is_label: as long as ids, or empty when every token is one. Ids must be in the vocabulary.
  void add_document(std::span<const int32_t> ids, std::span<const uint8_t> is_label);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int64_t num_documents() const { return static_cast<int64_t>(starts().size()) - 1; }
  [[nodiscard]] int64_t num_tokens() const { return static_cast<int64_t>(starts().back()); }
  [[nodiscard]] int64_t begin(int64_t document) const { return static_cast<int64_t>(starts()[static_cast<size_t>(document)]); }
  [[nodiscard]] bool has_labels() const { return !labels().empty(); }
  [[nodiscard]] bool is_label(int64_t token) const;
  [[nodiscard]] int64_t num_labels(int64_t begin, int64_t end) const;
  void copy_tokens(int64_t begin, std::span<int32_t> out) const;

  // Adds a digest of each document to `hash`, of its length, tokens and labels, whatever the form they are stored in. This is the
  // one read of everything; the error is the first token outside the vocabulary. `also`: one more hash that gets the same.
  [[nodiscard]] Status add_to(Checksum& hash, int64_t vocabulary_size, Checksum* also = nullptr) const;

  [[nodiscard]] static int bytes_per_token(int64_t vocabulary_size) {
    return vocabulary_size <= 1 << 8 ? 1 : vocabulary_size <= 1 << 16 ? 2 : 4;
  }

 private:
  TokenBlock(MappedFile file, int token_bytes);

  [[nodiscard]] std::span<const uint64_t> starts() const {
    return mapped_starts_.empty() ? std::span<const uint64_t>(starts_) : mapped_starts_;
  }
  [[nodiscard]] std::span<const std::byte> tokens() const { return file_ ? mapped_tokens_ : std::span<const std::byte>(tokens_); }
  [[nodiscard]] std::span<const uint8_t> labels() const { return file_ ? mapped_labels_ : std::span<const uint8_t>(labels_); }

  std::string path_;
  int token_bytes_;
  std::optional<MappedFile> file_;
  std::span<const uint64_t> mapped_starts_;  // [num_documents + 1]
  std::span<const std::byte> mapped_tokens_;
  std::span<const uint8_t> mapped_labels_;
  std::vector<uint64_t> starts_{0};
  std::vector<std::byte> tokens_;
  std::vector<uint8_t> labels_;
};

}  // namespace glim
