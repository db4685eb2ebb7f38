#pragma once
// Reading TOML that may be hostile into a plain tree with source positions. Nobody else includes the TOML library.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error.h"

namespace glim {

struct TomlMember;

struct TomlValue {
  enum class Kind : uint8_t { kTable, kArray, kString, kInteger, kReal, kBool };
  Kind kind = Kind::kTable;
  bool flag = false;
  int64_t integer = 0;
  double real = 0;                  // finite
  std::string text;                 // of a kString
  std::vector<TomlValue> items;     // of a kArray
  std::vector<TomlMember> members;  // of a kTable, in the order of the file
  SourceLocation where;

  [[nodiscard]] const TomlMember* find(std::string_view key) const;  // null if there is none
};

struct TomlMember {
  std::string key;
  SourceLocation where;  // of the key
  TomlValue value;
};

[[nodiscard]] std::string_view to_string(TomlValue::Kind kind);  // "a table", "an array", ...

inline constexpr size_t kMaxTomlBytes = size_t{1} << 20;
inline constexpr int kMaxKeyDepth = 16;      // segments of one dotted key
inline constexpr int kMaxBracketDepth = 32;  // nesting of arrays and inline tables
inline constexpr size_t kMaxTableKeys = 4096, kMaxTomlString = 4096;
inline constexpr size_t kMaxTomlValues = 100'000;  // of a file, tables and arrays included: each costs a few hundred bytes of memory

// Depths and the number of values are checked before the TOML library sees the text: its parser recurses on the depth of a key.
Result<TomlValue> parse_toml(std::string_view text, const std::string& file);
Result<TomlValue> read_toml(const std::string& file);

// `over` wins: tables are merged key by key, everything else is replaced.
void merge_toml(TomlValue& base, TomlValue over);

// The whole file, if it has at most max_bytes.
Result<std::string> read_text_file(const std::string& file, size_t max_bytes);

}  // namespace glim
