#include "runtime/data/documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "engine/quote.h"
#include "engine/suggest.h"
#include "runtime/data/json_lines.h"
#include "runtime/data/packed_file.h"

namespace glim {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExtensions[] = {".txt", ".jsonl", ".tokens"};  // in the order of DataFormat

std::optional<DataFormat> format_of(const fs::path& path) {
  const std::string extension = path.extension().string();
  const auto* const found = std::find(std::begin(kExtensions), std::end(kExtensions), extension);
  if (found == std::end(kExtensions)) return std::nullopt;
  return static_cast<DataFormat>(found - std::begin(kExtensions));
}

Status list_folder(const std::string& path, bool only_text, std::vector<DataFile>& files) {
  std::error_code error;
  std::vector<DataFile> found;
  for (auto at = fs::directory_iterator(path, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    const std::optional<DataFormat> format = format_of(at->path());
    std::error_code ignored;
    if (!format || (only_text && *format != DataFormat::kText) || at->path().filename().string().starts_with('.')) continue;
    if (at->is_regular_file(ignored)) found.push_back({at->path().string(), *format});
  }
  if (error) return io_error(path, "cannot list the folder", error.value());
  if (found.empty())
    return invalid_file(fmt::format("{}: this folder has no {} file", path, only_text ? ".txt" : ".txt, .jsonl or .tokens"));
  std::sort(found.begin(), found.end(), [](const DataFile& a, const DataFile& b) { return a.path < b.path; });
  files.insert(files.end(), found.begin(), found.end());
  return ok();
}

Status add_file(const DataFile& data_file, const Vocabulary& vocabulary, std::span<const std::string> ignored_keys, Checksum& hash,
                std::vector<TokenBlock>& blocks) {
  const std::string& path = data_file.path;
  GLIM_ASSIGN(MappedFile file, MappedFile::open(path));
  switch (data_file.format) {
    case DataFormat::kText:
      if (!vocabulary.is_bytes) return invalid_file(fmt::format("{}: text, {}", path, kNoTokenizer));
      blocks.push_back(TokenBlock::of_bytes(std::move(file)));
      return blocks.back().add_to(hash, vocabulary.size);
    case DataFormat::kJsonLines: {
      GLIM_ASSIGN(TokenBlock block, read_json_lines(file.text(), path, vocabulary, ignored_keys));
      blocks.push_back(std::move(block));
      return blocks.back().add_to(hash, vocabulary.size);
    }
    case DataFormat::kPacked: {
      GLIM_ASSIGN(PackedFile packed, open_packed(std::move(file)));
      const auto size = static_cast<int64_t>(packed.header.vocabulary_size);
      if (size > vocabulary.size) {
        return invalid_file(fmt::format("{}: packed for a vocabulary of {} tokens, the model has {}", path, size, vocabulary.size));
      }
      if ((packed.header.flags & PackedHeader::kIsBytes) != 0 && !vocabulary.is_bytes)
        return invalid_file(fmt::format("{}: its tokens are bytes, {}", path, kNoTokenizer));
      Checksum own;
      GLIM_TRY(packed.block.add_to(own, size, &hash));
      if (own.value() != packed.header.content)
        return invalid_file(fmt::format("{}: the documents are damaged: their checksum differs", path));
      blocks.push_back(std::move(packed.block));
      return ok();
    }
  }
  return ok();
}

}  // namespace

Result<std::vector<DataFile>> list_data_files(std::span<const std::string> files, std::span<const std::string> text) {
  std::vector<DataFile> found;
  for (const bool only_text : {false, true}) {
    for (const std::string& path : only_text ? text : files) {
      std::error_code error;
      if (path.find('\0') != std::string::npos) return invalid_argument(fmt::format("the path {} has a NUL byte", quote(path)));
      if (fs::is_directory(path, error)) {
        GLIM_TRY(list_folder(path, only_text, found));
        continue;
      }
      const std::string extension = fs::path(path).extension().string();
      const std::optional<DataFormat> format = only_text ? DataFormat::kText : format_of(path);
      if (!format) {
        return invalid_argument(
            fmt::format("{}: the extension '{}' is unknown, expected .txt, .jsonl or .tokens{}; a file under 'text' is read "
                        "as text whatever its extension",
                        path, printable(extension), did_you_mean(extension, kExtensions)));
      }
      found.push_back({path, *format});
    }
  }
  return found;
}

Result<Documents> load_documents(std::span<const DataFile> files, const Vocabulary& vocabulary, std::span<const std::string> ignored_keys) {
  Documents documents;
  Checksum hash;
  for (const DataFile& file : files) GLIM_TRY(add_file(file, vocabulary, ignored_keys, hash, documents.blocks));
  documents.digest = hash.value();
  return documents;
}

}  // namespace glim
