#pragma once
// Text from files shown in messages: one line, no control characters, of bounded length.
#include <string>
#include <string_view>

namespace glim {

// The text with control characters, and bytes that are no UTF-8, as \xNN; cut after 200 bytes.
[[nodiscard]] std::string printable(std::string_view text);
// The same in single quotes.
[[nodiscard]] std::string quote(std::string_view text);

}  // namespace glim
