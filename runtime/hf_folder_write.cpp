// The writing half of runtime/hf_folder.h.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/quote.h"
#include "runtime/atomic_file.h"
#include "runtime/hf_folder.h"
#include "runtime/hf_names.h"

namespace glim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Status check_layout(const HfLayout& layout) {
  if (layout.shards.empty() || (!layout.indexed && layout.shards.size() != 1)) {
    return invalid_argument(fmt::format("a checkpoint without an index has one file of weights, not {}", layout.shards.size()));
  }
  std::vector<std::string> names;
  for (const auto& shard : layout.shards) names.push_back(shard.file);
  for (const auto& file : layout.files) names.push_back(file.first);
  if (layout.indexed) names.emplace_back(kIndexName);
  std::sort(names.begin(), names.end());
  for (const auto& name : names) {
    if (!is_plain_file_name(name)) return invalid_argument(fmt::format("{} is no plain file name", quote(name)));
  }
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    return invalid_argument(fmt::format("two files of the checkpoint are called {}", quote(*twice)));
  }
  return ok();
}

// As Python's json.dumps(index, indent=2, sort_keys=True) + "\n"; but an index that was read and says the same is kept as it was.
Result<std::string> index_json(const HfLayout& layout) {
  const json old = layout.index_text.empty() ? json() : json::parse(layout.index_text, nullptr, false);
  json index = {{"weight_map", json::object()}};
  uint64_t total_bytes = 0, total_elements = 0;
  for (const auto& shard : layout.shards) {
    for (const TensorSpec& spec : shard.tensors) {
      if (!index["weight_map"].emplace(spec.name, shard.file).second)
        return invalid_argument(fmt::format("the tensor {} is in two shards", quote(spec.name)));
      const uint64_t bytes = checked_bytes(spec.dtype, spec.shape).value_or(0);  // safetensors_header has checked it
      total_bytes += bytes;
      total_elements += bytes * 8 / static_cast<uint64_t>(bits_of(spec.dtype));
    }
  }
  if (old.is_object()) {
    if (old.contains("metadata")) index["metadata"] = old["metadata"];
    if (old.contains("metadata") && old["metadata"].contains("total_size")) index["metadata"]["total_size"] = total_bytes;
  } else {
    index["metadata"] = {{"total_parameters", total_elements}, {"total_size", total_bytes}};
  }
  return index == old ? layout.index_text : index.dump(2, ' ', true) + "\n";
}

// Puts the finished folder at `path`. Both are on one file system, because they are siblings.
Status publish(const std::string& finished, const std::string& path) {
  if (std::rename(finished.c_str(), path.c_str()) == 0) return sync_folder(parent_folder(path));  // nothing there, or an empty folder
  if (errno != ENOTEMPTY && errno != EEXIST) return io_error(path, "cannot give the finished folder this name", errno);
  std::error_code error;
  for (auto at = fs::directory_iterator(path, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    const fs::directory_entry& entry = *at;
    std::error_code ignored;
    if (entry.is_directory(ignored) || !is_hf_file_name(entry.path().filename().string())) {
      return invalid_argument(
          fmt::format("{}: not replaced, because it holds {}, which is no part of an exported checkpoint; choose another folder", path,
                      quote(entry.path().filename().string())));
    }
  }
  if (error) return io_error(path, "cannot list the folder", error.value());
  GLIM_TRY(replace_folder(finished, path));
  return sync_folder(parent_folder(path));
}

}  // namespace

HfLayout plan_hf_layout(std::span<const TensorSpec> specs, uint64_t max_shard_bytes) {
  HfLayout layout;
  HfShard current;
  uint64_t current_bytes = 0;
  const auto finish = [&layout](HfShard shard) {
    sort_as_reference(shard.tensors);
    shard.metadata = FileMetadata{{"format", "pt"}};
    layout.shards.push_back(std::move(shard));
  };
  for (const TensorSpec& spec : specs) {
    const uint64_t bytes = checked_bytes(spec.dtype, spec.shape).value_or(0);  // a bad shape is reported when it is written
    if (bytes > max_shard_bytes) {
      finish({"", {spec}, {}});
      continue;
    }
    if (current_bytes + bytes > max_shard_bytes) {
      finish(std::exchange(current, {}));
      current_bytes = 0;
    }
    current.tensors.push_back(spec);
    current_bytes += bytes;
  }
  if (!current.tensors.empty() || layout.shards.empty()) finish(std::move(current));
  layout.indexed = layout.shards.size() > 1;
  for (size_t i = 0; i < layout.shards.size(); ++i) {
    layout.shards[i].file = layout.indexed ? fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, layout.shards.size()) : kSingleName;
  }
  return layout;
}

Result<WrittenFiles> write_hf_files(const std::string& folder, const HfLayout& layout, const TensorSource& source) {
  GLIM_TRY(check_layout(layout));
  for (const auto& shard : layout.shards) {  // every argument error comes before the first byte is written
    GLIM_ASSIGN(const std::string unused, safetensors_header(shard.tensors, shard.metadata));
  }
  std::vector<std::pair<std::string, std::string>> texts = layout.files;
  if (layout.indexed) {
    GLIM_ASSIGN(std::string index, index_json(layout));
    texts.emplace_back(kIndexName, std::move(index));
  }
  WrittenFiles written;
  for (const auto& [name, content] : texts) {
    Checksum checksum;
    GLIM_TRY(write_file_atomically(folder + "/" + name, content, &checksum));
    written[name] = checksum.digest();
  }
  for (const auto& shard : layout.shards) {
    Checksum checksum;
    GLIM_TRY(write_safetensors(folder + "/" + shard.file, shard.tensors, shard.metadata, source, &checksum));
    written[shard.file] = checksum.digest();
  }
  return written;
}

Status write_hf_folder(const std::string& path, const HfLayout& layout, const TensorSource& source) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(path, error);  // a link to a folder: the folder itself is replaced
  if (error || path.empty()) return io_error(path, "cannot use this path", error ? error.value() : ENOENT);
  if (fs::exists(real, error) && !fs::is_directory(real, error))
    return invalid_argument(fmt::format("{}: this is a file, expected a folder to write", path));

  const TemporaryFolder temporary(temporary_sibling(real.string()));
  if (::mkdir(temporary.path.c_str(), 0777) != 0) return io_error(path, "cannot create the folder", errno);
  GLIM_ASSIGN(const WrittenFiles unused, write_hf_files(temporary.path, layout, source));
  return publish(temporary.path, real.string());
}

}  // namespace glim
