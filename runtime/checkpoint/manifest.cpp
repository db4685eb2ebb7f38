#include "runtime/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/quote.h"
#include "models/strict_json.h"
#include "runtime/hf_names.h"
#include "runtime/mapped_file.h"

namespace glim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kFormat = 1;
constexpr size_t kMaxManifestBytes = 16 << 20;
constexpr size_t kChecksumDigits = 32;
constexpr std::string_view kSealBegin = "  \"manifest_xxh3\": \"", kSealEnd = "\"\n}\n";

// The line with the checksum of the bytes before it, and the closing brace.
std::string seal_of(std::string_view text) {
  Checksum checksum;
  checksum.add(text);
  return fmt::format("{}{}{}", kSealBegin, checksum.digest().xxh3, kSealEnd);
}

bool is_checkpoint_file(std::string_view name) {
  if (!is_plain_file_name(name)) return false;
  return name == kStateName || name == kConfigurationName || name == kOptimizerName || is_hf_file_name(name);
}

Result<uint64_t> count_of(const json& object, const char* key, const std::string& where) {
  const auto value = object.find(key);
  if (value == object.end() || !value->is_number_unsigned() || value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return invalid_file(fmt::format("{}: {} must be a whole number below 2^63", where, key));
  return value->get<uint64_t>();
}

Result<Digest> digest_of(const json& entry, const std::string& where) {
  if (!entry.is_object() || entry.size() != 2) return invalid_file(where + ": expected an object with bytes and xxh3");
  Digest digest;
  GLIM_ASSIGN(digest.bytes, count_of(entry, "bytes", where));
  const auto xxh3 = entry.find("xxh3");
  if (xxh3 == entry.end() || !xxh3->is_string()) return invalid_file(where + ": xxh3 must be a string");
  digest.xxh3 = xxh3->get<std::string>();
  if (digest.xxh3.size() != kChecksumDigits || digest.xxh3.find_first_not_of("0123456789abcdef") != std::string::npos)
    return invalid_file(where + ": xxh3 must be 32 lower-case hexadecimal digits");
  return digest;
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  std::string files;
  for (const auto& [name, digest] : manifest.files) {
    files += fmt::format("{}\n    {}: {{\"bytes\": {}, \"xxh3\": \"{}\"}}", files.empty() ? "" : ",", json(name).dump(), digest.bytes,
                         digest.xxh3);
  }
  const std::string text =
      fmt::format("{{\n  \"glim_checkpoint\": {},\n  \"step\": {},\n  \"files\": {{{}\n  }},\n", kFormat, manifest.step, files);
  return text + seal_of(text);
}

Result<Manifest> parse_manifest(std::string_view text, const std::string& path) {
  const auto fail = [&path](std::string_view what) { return invalid_file(fmt::format("{}: {}", path, what)); };
  const size_t seal_bytes = kSealBegin.size() + kChecksumDigits + kSealEnd.size();
  if (text.size() > kMaxManifestBytes) return fail(fmt::format("{} bytes, over the limit of {}", text.size(), kMaxManifestBytes));
  // The checksum comes first: whatever else would be found, the file is damaged.
  if (text.size() < seal_bytes) return fail("it is cut off: the line with its checksum is missing");
  const std::string_view body = text.substr(0, text.size() - seal_bytes);
  if (text.substr(body.size()) != seal_of(body)) return fail("it does not have the checksum that its last line says: the file is damaged");

  GLIM_ASSIGN(const json root, parse_strict_json(text, path));
  if (!root.is_object()) return fail("expected an object");
  GLIM_ASSIGN(const uint64_t format, count_of(root, "glim_checkpoint", path));
  if (format != kFormat) return fail(fmt::format("the checkpoint has format {}, this program reads format {}", format, kFormat));
  for (const auto& [key, value] : root.items()) {
    if (key != "glim_checkpoint" && key != "step" && key != "files" && key != "manifest_xxh3")
      return fail(fmt::format("unknown key {}", quote(key)));
  }
  Manifest manifest;
  GLIM_ASSIGN(const uint64_t step, count_of(root, "step", path));
  manifest.step = static_cast<int64_t>(step);
  const auto files = root.find("files");
  if (files == root.end() || !files->is_object()) return fail("files must be an object");
  for (const auto& [name, entry] : files->items()) {
    if (!is_checkpoint_file(name)) return fail(fmt::format("{} is not the name of a file of a checkpoint", quote(name)));
    GLIM_ASSIGN(manifest.files[name], digest_of(entry, fmt::format("{}: {}", path, quote(name))));
  }
  for (const char* name : {kStateName, kConfigurationName, kOptimizerName}) {
    if (!manifest.files.contains(name)) return fail(fmt::format("it does not name {}", name));
  }
  return manifest;
}

Result<Manifest> verify_folder(const std::string& folder) {
  const auto inside = [&folder](const std::string& name) { return folder + "/" + name; };
  std::error_code error;
  const fs::file_status status = fs::symlink_status(folder, error);
  if (!fs::exists(status)) return io_error(folder, "cannot open", error ? error.value() : ENOENT);
  if (!fs::is_directory(status)) return invalid_file(fmt::format("{}: expected a folder, and no link", folder));

  std::map<std::string, uint64_t> found;  // name -> bytes
  for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    const fs::file_status type = at->symlink_status(error);
    if (error) return io_error(inside(name), "cannot stat", error.value());
    if (!fs::is_regular_file(type)) {
      return invalid_file(fmt::format("{}/{}: this is {}, expected a regular file", folder, printable(name),
                                      fs::is_symlink(type)     ? "a link"
                                      : fs::is_directory(type) ? "a folder"
                                                               : "a pipe, socket or device"));
    }
    found[name] = at->file_size(error);
    if (error) return io_error(inside(name), "cannot stat", error.value());
  }
  if (error) return io_error(folder, "cannot list the folder", error.value());
  if (!found.contains(kManifestName)) return invalid_file(fmt::format("{}: there is no {}", folder, kManifestName));

  GLIM_ASSIGN(const MappedFile text, MappedFile::open(inside(kManifestName)));
  GLIM_ASSIGN(Manifest manifest, parse_manifest(text.text(), inside(kManifestName)));
  for (const auto& [name, bytes] : found) {
    const auto expected = manifest.files.find(name);
    if (name == kManifestName) continue;
    if (expected == manifest.files.end()) return invalid_file(fmt::format("{}: {} is not in {}", folder, quote(name), kManifestName));
    if (bytes != expected->second.bytes)
      return invalid_file(
          fmt::format("{}: it has {} bytes, expected {}: the file is damaged", inside(name), bytes, expected->second.bytes));
  }
  for (const auto& [name, expected] : manifest.files) {
    if (!found.contains(name)) return invalid_file(fmt::format("{}: the file is missing", inside(name)));
    GLIM_ASSIGN(const Digest digest, digest_of_file(inside(name)));
    if (digest != expected) {
      return invalid_file(
          fmt::format("{}: its checksum is {}, expected {}: the file is damaged", inside(name), digest.xxh3, expected.xxh3));
    }
  }
  return manifest;
}

}  // namespace glim
