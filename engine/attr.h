#pragma once
// Attributes of a node: plain data, 8 bytes each (a double, an integer, a flag or an enumerator), stored as 32-bit words in the
// graph's pool and compared as words. An op describes its attributes once, in an array of AttrSpec; its typed struct has the
// same fields in the same order (double for kReal, int64_t for the others), so the words are that struct.
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace glim {

enum class AttrKind : uint8_t { kReal, kInteger, kBool, kEnum };

struct AttrSpec {
  std::string_view name;
  AttrKind kind = AttrKind::kReal;
  bool required = false;
  double default_real = 0;
  int64_t default_integer = 0;
  std::span<const std::string_view> choices{};  // of a kEnum
  std::string_view doc;
};

constexpr AttrSpec real_attr(std::string_view name, double value, std::string_view doc) {
  return {name, AttrKind::kReal, false, value, 0, {}, doc};
}
constexpr AttrSpec integer_attr(std::string_view name, int64_t value, std::string_view doc) {
  return {name, AttrKind::kInteger, false, 0, value, {}, doc};
}
constexpr AttrSpec bool_attr(std::string_view name, bool value, std::string_view doc) {
  return {name, AttrKind::kBool, false, 0, value ? 1 : 0, {}, doc};
}
constexpr AttrSpec enum_attr(std::string_view name, int64_t value, std::span<const std::string_view> choices, std::string_view doc) {
  return {name, AttrKind::kEnum, false, 0, value, choices, doc};
}
constexpr AttrSpec required(AttrSpec spec) {
  spec.required = true;
  return spec;
}

inline constexpr size_t kWordsPerAttr = 2;

template <class Attrs>
std::vector<uint32_t> to_words(const Attrs& attrs) {
  static_assert(std::is_trivially_copyable_v<Attrs>);
  if constexpr (std::is_empty_v<Attrs>) {
    return {};
  } else {
    static_assert(sizeof(Attrs) % 8 == 0);
    std::vector<uint32_t> words(sizeof(Attrs) / 4);
    std::memcpy(words.data(), &attrs, sizeof(Attrs));
    return words;
  }
}

template <class Attrs>
Attrs from_words(std::span<const uint32_t> words) {
  Attrs attrs{};
  if constexpr (!std::is_empty_v<Attrs>) std::memcpy(&attrs, words.data(), sizeof(Attrs));
  return attrs;
}

inline double real_at(std::span<const uint32_t> words, size_t k) {
  double value = 0;
  std::memcpy(&value, words.data() + k * kWordsPerAttr, sizeof value);
  return value;
}
inline int64_t integer_at(std::span<const uint32_t> words, size_t k) {
  int64_t value = 0;
  std::memcpy(&value, words.data() + k * kWordsPerAttr, sizeof value);
  return value;
}
inline void set_real(std::span<uint32_t> words, size_t k, double value) {
  std::memcpy(words.data() + k * kWordsPerAttr, &value, sizeof value);
}
inline void set_integer(std::span<uint32_t> words, size_t k, int64_t value) {
  std::memcpy(words.data() + k * kWordsPerAttr, &value, sizeof value);
}

// The words of an op whose attributes all have their defaults.
inline std::vector<uint32_t> default_words(std::span<const AttrSpec> specs) {
  std::vector<uint32_t> words(specs.size() * kWordsPerAttr);
  for (size_t k = 0; k < specs.size(); ++k) {
    if (specs[k].kind == AttrKind::kReal)
      set_real(words, k, specs[k].default_real);
    else
      set_integer(words, k, specs[k].default_integer);
  }
  return words;
}

}  // namespace glim
