#include "runtime/hf_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/quote.h"
#include "models/hf_config.h"
#include "models/strict_json.h"
#include "runtime/hf_names.h"

namespace glim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The real path of a file of a folder. A link must not lead out of the folder (a checkpoint from the net could otherwise make
// us read, and copy, any file of the machine), except into the blobs of the same repository in a Hugging Face cache.
Result<std::string> file_inside(const std::string& folder, const std::string& name) {
  const fs::path path = fs::path(folder) / name;
  std::error_code error;
  const fs::path root = fs::canonical(folder, error);
  const fs::path real = error ? fs::path() : fs::canonical(path, error);
  if (error) return io_error(path.string(), "cannot open", error.value());
  const auto inside = [&real](const fs::path& outer) {
    return std::mismatch(outer.begin(), outer.end(), real.begin(), real.end()).first == outer.end();
  };
  const fs::path repository = root.parent_path().filename() == "snapshots" ? root.parent_path().parent_path() : fs::path();
  if (inside(root) || (!repository.empty() && inside(repository / "blobs"))) return real.string();
  return invalid_file(fmt::format("{}: this link leads out of its folder, to {}", path.string(), real.string()));
}

struct Index {
  std::map<std::string, std::string> weight_map;
  std::optional<uint64_t> total_size;
};

Result<Index> parse_index(std::string_view text, const std::string& path) {
  if (text.size() > kMaxHeaderBytes)
    return invalid_file(fmt::format("{}: {} bytes, over the limit of {}", path, text.size(), kMaxHeaderBytes));
  GLIM_ASSIGN(const json root, parse_strict_json(text, path));
  const auto fail = [&path](std::string_view what) { return invalid_file(fmt::format("{}: {}", path, what)); };
  if (!root.is_object()) return fail("expected an object with weight_map");
  for (const auto& [key, value] : root.items()) {
    if (key != "metadata" && key != "weight_map") return fail(fmt::format("unknown key {}, expected metadata and weight_map", quote(key)));
    if (!value.is_object()) return fail(fmt::format("{} must be an object", key));
  }
  const auto weight_map = root.find("weight_map");
  if (weight_map == root.end() || weight_map->empty()) return fail("weight_map is missing or empty");
  Index index;
  for (const auto& [name, value] : weight_map->items()) {
    if (!value.is_string()) return fail(fmt::format("weight_map: the file of {} must be a string", quote(name)));
    const auto& file = value.get_ref<const std::string&>();
    if (!is_plain_file_name(file) || !file.ends_with(".safetensors")) {
      return fail(fmt::format("weight_map: the file of {} is {}, expected the plain name of a .safetensors file in this folder",
                              quote(name), quote(file)));
    }
    index.weight_map.emplace(name, file);
  }
  if (const auto metadata = root.find("metadata"); metadata != root.end() && metadata->contains("total_size")) {
    const json& total_size = metadata->at("total_size");
    if (!total_size.is_number_unsigned())
      return fail(fmt::format("metadata.total_size is {}, expected a whole number", printable(total_size.dump())));
    index.total_size = total_size.get<uint64_t>();
  }
  return index;
}

}  // namespace

Result<HfFolder> HfFolder::open(const std::string& path) {
  HfFolder out;
  out.path_ = path;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return io_error(path, "cannot open", error ? error.value() : ENOENT);
  if (!fs::is_directory(status)) {
    if (!path.ends_with(".safetensors")) return invalid_file(fmt::format("{}: expected a checkpoint folder or a .safetensors file", path));
    GLIM_TRY(out.open_single(path));
  } else {
    const bool single = fs::exists(fs::path(path) / kSingleName, error), indexed = fs::exists(fs::path(path) / kIndexName, error);
    if (single && indexed) return invalid_file(fmt::format("{}: has both {} and {}; remove the stale one", path, kSingleName, kIndexName));
    if (!single && !indexed) return invalid_file(fmt::format("{}: has neither {} nor {}", path, kSingleName, kIndexName));
    if (fs::exists(fs::path(path) / kConfigName, error)) {
      GLIM_ASSIGN(const std::string real, file_inside(path, kConfigName));
      GLIM_ASSIGN(const MappedFile config, MappedFile::open(real));
      if (config.bytes().size() > kMaxConfigBytes)  // it is kept, for the export
        return invalid_file(fmt::format("{}: {} bytes, over the limit of {}", real, config.bytes().size(), kMaxConfigBytes));
      out.layout_.files.emplace_back(kConfigName, config.text());
    }
    if (indexed) {
      GLIM_TRY(out.open_index(path));
    } else {
      GLIM_ASSIGN(const std::string real, file_inside(path, kSingleName));
      GLIM_TRY(out.open_single(real));
    }
  }
  for (const auto& shard : out.shards_) {
    for (const FileTensor& tensor : shard.tensors()) out.tensors_.push_back(&tensor);
  }
  std::sort(out.tensors_.begin(), out.tensors_.end(), [](const auto* a, const auto* b) { return a->spec.name < b->spec.name; });
  return out;
}

Status HfFolder::open_single(const std::string& file) {
  GLIM_ASSIGN(SafetensorsFile shard, SafetensorsFile::open(file));
  add_shard(kSingleName, std::move(shard));
  return ok();
}

Status HfFolder::open_index(const std::string& folder) {
  const std::string index_path = (fs::path(folder) / kIndexName).string();
  GLIM_ASSIGN(const std::string real_index, file_inside(folder, kIndexName));
  GLIM_ASSIGN(const MappedFile text, MappedFile::open(real_index));
  GLIM_ASSIGN(const Index index, parse_index(text.text(), index_path));
  const auto fail = [&index_path](std::string_view what) { return invalid_file(fmt::format("{}: {}", index_path, what)); };

  std::map<std::string, std::vector<std::string>> names_of_file;
  for (const auto& [name, file] : index.weight_map) names_of_file[file].push_back(name);
  uint64_t total_bytes = 0;
  for (const auto& [file, names] : names_of_file) {
    GLIM_ASSIGN(const std::string real, file_inside(folder, file));
    GLIM_ASSIGN(SafetensorsFile shard, SafetensorsFile::open(real));
    for (const std::string& name : names) {
      if (shard.find(name) == nullptr) return fail(fmt::format("the tensor {} is not in {}, where weight_map puts it", quote(name), file));
    }
    for (const FileTensor& tensor : shard.tensors()) {
      total_bytes += tensor.data.size();
      const auto entry = index.weight_map.find(tensor.spec.name);
      if (entry == index.weight_map.end())
        return fail(fmt::format("{} holds the tensor {}, which weight_map does not name", file, quote(tensor.spec.name)));
      if (entry->second != file) {
        return fail(fmt::format("{} holds the tensor {}, which weight_map puts in {}", file, quote(tensor.spec.name), entry->second));
      }
    }
    add_shard(file, std::move(shard));
  }
  if (index.total_size && *index.total_size != total_bytes) {
    return fail(fmt::format("metadata.total_size is {}, but the tensors take {} bytes", *index.total_size, total_bytes));
  }
  layout_.indexed = true;
  layout_.index_text = text.text();
  return ok();
}

void HfFolder::add_shard(const std::string& file, SafetensorsFile shard) {
  HfShard layout{file, {}, shard.metadata()};
  for (const FileTensor& tensor : shard.tensors()) layout.tensors.push_back(tensor.spec);
  layout_.shards.push_back(std::move(layout));
  shards_.push_back(std::move(shard));
}

const FileTensor* HfFolder::find(std::string_view name) const {
  const auto found = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                      [](const auto* tensor, std::string_view key) { return tensor->spec.name < key; });
  return found != tensors_.end() && (*found)->spec.name == name ? *found : nullptr;
}

const std::string* HfFolder::config_json() const {
  for (const auto& [name, content] : layout_.files) {
    if (name == kConfigName) return &content;
  }
  return nullptr;
}

TensorSource HfFolder::source() const {
  return [this](const TensorSpec& spec) -> Result<std::span<const std::byte>> {
    const FileTensor* tensor = find(spec.name);
    if (tensor == nullptr) return invalid_argument(fmt::format("{}: has no tensor {}", path_, quote(spec.name)));
    return tensor->data;
  };
}

}  // namespace glim
