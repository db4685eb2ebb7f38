#pragma once
// All documents of some files: tokens and labels, in memory or mapped, each read once.
#include <span>
#include <string>
#include <vector>

#include "runtime/data/data_config.h"
#include "runtime/data/token_block.h"

namespace glim {

enum class DataFormat : uint8_t { kText, kJsonLines, kPacked };  // .txt (one document), .jsonl, .tokens

struct DataFile {
  std::string path;
  DataFormat format;
};
// The files that `files` and `text` of a configuration stand for, in that order. A folder stands for the files of known extensions in
// it (of `text`: .txt only), ordered by name; not for hidden ones, and not for those of its sub-folders. Errors: kIo; kInvalidArgument
// for an extension that is unknown; kInvalidFile for a folder without data.
[[nodiscard]] Result<std::vector<DataFile>> list_data_files(std::span<const std::string> files, std::span<const std::string> text);

struct Documents {
  std::vector<TokenBlock> blocks;  // one per file
  Hash128 digest{};                // of the number, lengths, tokens and labels of the documents, however they are stored
};
// Text and .tokens files are mapped; the tokens of .jsonl files are held in memory, 1, 2 or 4 bytes each. Errors: kIo; kInvalidFile.
[[nodiscard]] Result<Documents> load_documents(std::span<const DataFile> files, const Vocabulary& vocabulary,
                                               std::span<const std::string> ignored_keys);

}  // namespace glim
