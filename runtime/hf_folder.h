#pragma once
// A Hugging Face checkpoint folder: config.json, and model.safetensors or model.safetensors.index.json with its shards.
// Reading and writing a folder back gives the same bytes.
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/type.h"
#include "runtime/checksum.h"
#include "runtime/safetensors.h"

namespace glim {

struct HfShard {
  std::string file;                 // a plain name, such as "model-00001-of-00002.safetensors"
  std::vector<TensorSpec> tensors;  // in the order of their bytes
  std::optional<FileMetadata> metadata;
};

// Which tensor lies in which file: all of a folder except the tensors' bytes.
struct HfLayout {
  std::vector<HfShard> shards;
  bool indexed = false;                                    // false: exactly one shard and no index
  std::string index_text;                                  // the index.json that was read, "" for a new one
  std::vector<std::pair<std::string, std::string>> files;  // {name, content} written as they are: config.json
};

class HfFolder {
 public:
  // `path`: such a folder, or one .safetensors file (then there is no config.json). Errors: kIo; kInvalidFile for an index that
  // disagrees with its shards in any way, or that names anything but a file of this folder.
  [[nodiscard]] static Result<HfFolder> open(const std::string& path);

  [[nodiscard]] std::span<const FileTensor* const> tensors() const { return tensors_; }  // of all shards, by name
  [[nodiscard]] const FileTensor* find(std::string_view name) const;                     // nullptr: no such tensor
  [[nodiscard]] const HfLayout& layout() const { return layout_; }
  [[nodiscard]] const std::string* config_json() const;  // content of config.json; nullptr: there is none
  [[nodiscard]] const std::string& path() const { return path_; }
  // The tensors' bytes as they are, for write_hf_folder; used only while this object lives.
  [[nodiscard]] TensorSource source() const;

 private:
  Status open_index(const std::string& folder);
  Status open_single(const std::string& file);
  void add_shard(const std::string& file, SafetensorsFile shard);

  std::string path_;
  std::vector<SafetensorsFile> shards_;
  std::vector<const FileTensor*> tensors_;
  HfLayout layout_;
};

// A parameter that a model wants from a checkpoint.
struct ExpectedTensor {
  std::string name;  // HF name
  TensorType type;   // a float type is filled from any float type of files, an integer type from any integer type
};
// kInvalidFile with every kind of disagreement: missing, unexpected, wrong shape, wrong dtype; ten of each, then their number.
// Tensors of the folder whose names start with one of `ignored_prefixes` may be there without being expected.
[[nodiscard]] Status check_tensors(const HfFolder& folder, std::span<const ExpectedTensor> expected,
                                   std::span<const std::string> ignored_prefixes = {});

// Where the reference library would put new tensors: shards of at most `max_shard_bytes` filled in the given order, one file
// without an index when all fits. A tensor larger than that gets a file of its own.
[[nodiscard]] HfLayout plan_hf_layout(std::span<const TensorSpec> specs, uint64_t max_shard_bytes = 50'000'000'000);

// File name -> what was written.
using WrittenFiles = std::map<std::string, Digest>;
// Writes the files of the layout into a folder that is there. Each file is synced, the folder as well.
[[nodiscard]] Result<WrittenFiles> write_hf_files(const std::string& folder, const HfLayout& layout, const TensorSource& source);
// Writes the whole folder beside `path` and then gives it that name. What was there stays until the last moment, and is
// replaced only if it holds nothing but an earlier export; else kInvalidArgument names the file in the way.
[[nodiscard]] Status write_hf_folder(const std::string& path, const HfLayout& layout, const TensorSource& source);

}  // namespace glim
