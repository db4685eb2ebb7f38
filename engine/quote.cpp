#include "engine/quote.h"

#include <fmt/format.h>

namespace glim {

std::string printable(std::string_view text) {
  constexpr size_t kLongest = 200;
  std::string out;
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return text.size() > kLongest ? out + "..." : out;
}

std::string quote(std::string_view text) { return fmt::format("'{}'", printable(text)); }

}  // namespace glim
