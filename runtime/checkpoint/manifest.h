#pragma once
// manifest.json of a checkpoint: its step, the bytes and the checksum of every other file, and a checksum of itself.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "runtime/checksum.h"

namespace glim {

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr char kStateName[] = "state.json";
inline constexpr char kConfigurationName[] = "train.toml";
inline constexpr char kOptimizerName[] = "optimizer.safetensors";

struct Manifest {
  int64_t step = 0;
  std::map<std::string, Digest> files;
};

// JSON of which the last line but one is the checksum of all bytes before that line.
[[nodiscard]] std::string manifest_text(const Manifest& manifest);
// kInvalidFile with `path` and what is wrong: in particular a wrong checksum, and a file name that no checkpoint has.
[[nodiscard]] Result<Manifest> parse_manifest(std::string_view text, const std::string& path);

// Reads the manifest of a folder and every file that it names. kInvalidFile (kIo when something cannot be read) says which file
// is missing, damaged, not in the manifest or no regular file. After it, the folder holds what was written, byte for byte.
[[nodiscard]] Result<Manifest> verify_folder(const std::string& folder);

}  // namespace glim
