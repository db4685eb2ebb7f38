#include "engine/quote.h"

#include <fmt/format.h>

#include <algorithm>

namespace glim {
namespace {

// Bytes of the UTF-8 character that `text` begins with; 0 when it begins with none. Not text: overlong forms, surrogates, above 0x10ffff.
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(i < text.size() ? text[i] : 0); };
  const unsigned char first = byte(0);
  const size_t count = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  for (size_t i = 1; i < count; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool is_bad = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) || (first == 0xf0 && byte(1) < 0x90) ||
                      (first == 0xf4 && byte(1) > 0x8f);
  return is_bad ? 0 : count;
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr size_t kLongest = 200;
  const bool is_cut = text.size() > kLongest;
  std::string out;
  for (text = text.substr(0, kLongest); !text.empty();) {
    const auto first = static_cast<unsigned char>(text[0]);
    const size_t count = character_bytes(text);
    if (count == 0 || first < 0x20 || first == 0x7f)
      out += fmt::format("\\x{:02x}", first);
    else
      out += text.substr(0, count);
    text.remove_prefix(std::max<size_t>(count, 1));
  }
  return is_cut ? out + "..." : out;
}

std::string quote(std::string_view text) { return fmt::format("'{}'", printable(text)); }

}  // namespace glim
