// The writing half of runtime/safetensors.h.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "engine/quote.h"
#include "runtime/atomic_file.h"
#include "runtime/safetensors.h"

namespace glim {
namespace {

// A JSON string with the escapes of the reference library: the short ones and \u00xx below 0x20, everything else raw.
Result<std::string> json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    return invalid_argument(fmt::format("{} is not UTF-8", quote(text)));
  }
}

}  // namespace

void sort_as_reference(std::vector<TensorSpec>& specs) {
  std::stable_sort(specs.begin(), specs.end(),
                   [](const TensorSpec& a, const TensorSpec& b) { return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name; });
}

Result<std::string> safetensors_header(std::span<const TensorSpec> specs, const std::optional<FileMetadata>& metadata) {
  std::string header = "{";
  std::unordered_set<std::string_view> seen;
  if (metadata) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : *metadata) {
      if (!seen.insert(key).second) return invalid_argument(fmt::format("the metadata key {} appears twice", quote(key)));
      GLIM_ASSIGN(const std::string key_text, json_string(key));
      GLIM_ASSIGN(const std::string value_text, json_string(value));
      header += fmt::format("{}{}:{}", header.back() == '{' ? "" : ",", key_text, value_text);
    }
    header += '}';
  }
  seen.clear();
  uint64_t begin = 0;
  for (const TensorSpec& spec : specs) {
    const std::string& name = spec.name;
    if (name.empty() || name == "__metadata__" || name.find('\0') != std::string::npos) {
      return invalid_argument(fmt::format("{} cannot be the name of a tensor in a safetensors file", quote(name)));
    }
    if (!seen.insert(name).second) return invalid_argument(fmt::format("the tensor {} appears twice", quote(name)));
    const auto size = checked_bytes(spec.dtype, spec.shape);
    uint64_t end = 0;
    if (!size || spec.shape.size() > kMaxFileRank || __builtin_add_overflow(begin, *size, &end)) {
      return invalid_argument(fmt::format("the tensor {} of type {} cannot be stored", quote(name), describe(spec)));
    }
    GLIM_ASSIGN(const std::string name_text, json_string(name));
    header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", header.size() == 1 ? "" : ",", name_text,
                          to_string(spec.dtype), fmt::join(spec.shape, ","), begin, end);
    begin = end;
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > kMaxHeaderBytes) {
    return invalid_argument(fmt::format("the header takes {} bytes, over the limit of {}", header.size(), kMaxHeaderBytes));
  }
  std::string out(8, '\0');
  const uint64_t header_bytes = header.size();
  std::memcpy(out.data(), &header_bytes, sizeof header_bytes);
  return out + header;
}

Status write_safetensors(const std::string& path, std::span<const TensorSpec> specs, const std::optional<FileMetadata>& metadata,
                         const TensorSource& source, Checksum* checksum) {
  GLIM_ASSIGN(const std::string header, safetensors_header(specs, metadata));
  GLIM_ASSIGN(AtomicFile file, AtomicFile::create(path, checksum));
  GLIM_TRY(file.write(header));
  for (const TensorSpec& spec : specs) {
    GLIM_ASSIGN(const auto data, source(spec));
    if (data.size() != checked_bytes(spec.dtype, spec.shape)) {
      return invalid_argument(
          fmt::format("{}: {} bytes given for the tensor {} of type {}", path, data.size(), quote(spec.name), describe(spec)));
    }
    GLIM_TRY(file.write(data));
  }
  return file.commit();
}

Status write_safetensors(const std::string& path, std::span<const FileTensor> tensors, const std::optional<FileMetadata>& metadata) {
  std::vector<TensorSpec> specs;
  for (const FileTensor& tensor : tensors) specs.push_back(tensor.spec);
  size_t next = 0;
  return write_safetensors(path, specs, metadata,
                           [&](const TensorSpec&) -> Result<std::span<const std::byte>> { return tensors[next++].data; });
}

}  // namespace glim
