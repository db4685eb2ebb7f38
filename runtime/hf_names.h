#pragma once
// File names of a Hugging Face checkpoint folder.
#include <string_view>

namespace glim {

inline constexpr char kSingleName[] = "model.safetensors";
inline constexpr char kIndexName[] = "model.safetensors.index.json";
inline constexpr char kConfigName[] = "config.json";

// What a Hugging Face checkpoint consists of: its configuration, its index and its weights.
[[nodiscard]] constexpr bool is_hf_file_name(std::string_view name) {
  return name == kConfigName || name == kIndexName || name == kSingleName || (name.starts_with("model-") && name.ends_with(".safetensors"));
}

// One component of a path that stays where it is: not empty, ".", "..", over 255 bytes, nor with a slash or control character.
[[nodiscard]] constexpr bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name == "." || name == ".." || name.size() > 255) return false;
  for (const char c : name) {
    if (c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  }
  return true;
}

}  // namespace glim
