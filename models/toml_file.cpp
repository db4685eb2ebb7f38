#include "models/toml_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#define TOML_EXCEPTIONS 0
#define TOML_ASSERT(x) ((void)0)
// Version 3.3 calls it unreachable that a character between U+00A1 and U+FEFF is no white space ("\\" at the end of a line and then an
// accented letter, in a good document): undefined behaviour. Here it is the answer "no".
#if __has_include(<toml++/impl/unicode.h>)
#include <toml++/impl/forward_declarations.h>
#pragma push_macro("TOML_UNREACHABLE")
#undef TOML_UNREACHABLE
#define TOML_UNREACHABLE return false
#include <toml++/impl/unicode.h>
#pragma pop_macro("TOML_UNREACHABLE")
#endif
#include <toml++/toml.h>

namespace glim {
namespace {

// Walks the text as a TOML lexer would; measures depth, and counts what begins a value or a table. The parser stops at the first error, so
// losing step with it after malformed text does no harm.
class SizeCheck {
 public:
  SizeCheck(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  Status run() {
    int brackets = 0, dots = 0;
    size_t num_values = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      constexpr std::string_view kBeginners = "=,[{.";
      if (kBeginners.find(c) != std::string_view::npos && ++num_values > kMaxTomlValues)
        return error(fmt::format("the file has more than {} values", kMaxTomlValues));
      switch (c) {
        case '#': skip_until_newline(); continue;
        case '"':
        case '\'': skip_string(c); continue;
        case '[':
        case '{':
          dots = 0;
          if (++brackets > kMaxBracketDepth) return error(fmt::format("arrays and tables are nested more than {} deep", kMaxBracketDepth));
          break;
        case ']':
        case '}':
          dots = 0;
          brackets = std::max(0, brackets - 1);
          break;
        case '.':
          if (++dots >= kMaxKeyDepth) return error(fmt::format("a key is nested more than {} deep", kMaxKeyDepth));
          break;
        case '=':
        case ',': dots = 0; break;
        case '\n':
          dots = 0;
          ++line_;
          line_start_ = at_ + 1;
          break;
        default: break;
      }
      ++at_;
    }
    return ok();
  }

 private:
  void skip_until_newline() {
    while (at_ < text_.size() && text_[at_] != '\n') ++at_;
  }
  // Stands on the opening quote; ends after the closing one (or at the end of the line that lacks it).
  void skip_string(char quote) {
    const std::string triple(3, quote);
    const bool multi_line = text_.substr(at_, 3) == triple;
    at_ += multi_line ? 3 : 1;
    while (at_ < text_.size()) {
      if (multi_line && text_.substr(at_, 3) == triple) {
        at_ += 3;
        while (at_ < text_.size() && text_[at_] == quote) ++at_;  // up to two quotes may stand before the closing three
        return;
      }
      if (!multi_line && text_[at_] == quote) {
        ++at_;
        return;
      }
      if (quote == '"' && text_[at_] == '\\' && at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
      if (text_[at_] == '\n') {
        if (!multi_line) return;
        ++line_;
        line_start_ = at_ + 1;
      }
      ++at_;
    }
  }
  [[nodiscard]] Error error(std::string message) const {
    return invalid_argument(std::move(message), {file_, line_, static_cast<int>(at_ - line_start_) + 1});
  }

  std::string_view text_;
  const std::string& file_;
  size_t at_ = 0, line_start_ = 0;
  int line_ = 1;
};

SourceLocation location(const toml::source_region& source, const std::string& file) {
  return {file, static_cast<int>(source.begin.line), static_cast<int>(source.begin.column)};
}

std::string too_long(std::string_view what) { return fmt::format("a {} has more than {} bytes", what, kMaxTomlString); }

// Recursion is bounded by the caps that SizeCheck has enforced.
Result<TomlValue> convert(const toml::node& node, const std::string& file) {
  TomlValue value;
  value.where = location(node.source(), file);
  switch (node.type()) {
    case toml::node_type::table: {
      if (node.as_table()->size() > kMaxTableKeys)
        return invalid_argument(fmt::format("a table has more than {} keys", kMaxTableKeys), value.where);
      for (const auto& [key, child] : *node.as_table()) {
        if (key.str().size() > kMaxTomlString) return invalid_argument(too_long("key"), location(key.source(), file));
        GLIM_ASSIGN(TomlValue converted, convert(child, file));
        value.members.push_back({std::string(key.str()), location(key.source(), file), std::move(converted)});
      }
      // The library sorts by name; people think in the order that they wrote.
      std::stable_sort(value.members.begin(), value.members.end(), [](const TomlMember& a, const TomlMember& b) {
        return std::pair(a.where.line, a.where.column) < std::pair(b.where.line, b.where.column);
      });
      return value;
    }
    case toml::node_type::array:
      value.kind = TomlValue::Kind::kArray;
      for (const toml::node& child : *node.as_array()) {
        GLIM_ASSIGN(TomlValue converted, convert(child, file));
        value.items.push_back(std::move(converted));
      }
      return value;
    case toml::node_type::string:
      value.kind = TomlValue::Kind::kString;
      value.text = node.as_string()->get();
      if (value.text.size() > kMaxTomlString) return invalid_argument(too_long("string"), value.where);
      return value;
    case toml::node_type::integer:
      value.kind = TomlValue::Kind::kInteger;
      value.integer = node.as_integer()->get();
      return value;
    case toml::node_type::floating_point:
      value.kind = TomlValue::Kind::kReal;
      value.real = node.as_floating_point()->get();
      if (!std::isfinite(value.real)) return invalid_argument("a number must be finite", value.where);
      return value;
    case toml::node_type::boolean:
      value.kind = TomlValue::Kind::kBool;
      value.flag = node.as_boolean()->get();
      return value;
    default: return invalid_argument("dates and times have no meaning in a model file", value.where);
  }
}

}  // namespace

const TomlMember* TomlValue::find(std::string_view key) const {
  const auto found = std::find_if(members.begin(), members.end(), [&](const TomlMember& member) { return member.key == key; });
  return found == members.end() ? nullptr : &*found;
}

std::string_view to_string(TomlValue::Kind kind) {
  switch (kind) {
    case TomlValue::Kind::kTable: return "a table";
    case TomlValue::Kind::kArray: return "an array";
    case TomlValue::Kind::kString: return "a string";
    case TomlValue::Kind::kInteger: return "an integer";
    case TomlValue::Kind::kReal: return "a real number";
    case TomlValue::Kind::kBool: return "a boolean";
  }
  return "?";
}

Result<TomlValue> parse_toml(std::string_view text, const std::string& file) {
  if (text.size() > kMaxTomlBytes)
    return invalid_argument(fmt::format("the file has {} bytes; a model file has at most {}", text.size(), kMaxTomlBytes), {file});
  GLIM_TRY(SizeCheck(text, file).run());
  const toml::parse_result parsed = toml::parse(text, std::string_view(file));
  if (!parsed) return invalid_argument(std::string(parsed.error().description()), location(parsed.error().source(), file));
  return convert(parsed.table(), file);
}

Result<TomlValue> read_toml(const std::string& file) {
  GLIM_ASSIGN(const std::string text, read_text_file(file, kMaxTomlBytes));
  return parse_toml(text, file);
}

void merge_toml(TomlValue& base, TomlValue over) {
  if (base.kind != TomlValue::Kind::kTable || over.kind != TomlValue::Kind::kTable) {
    base = std::move(over);
    return;
  }
  for (TomlMember& member : over.members) {
    const auto same = std::find_if(base.members.begin(), base.members.end(), [&](const TomlMember& old) { return old.key == member.key; });
    if (same == base.members.end()) {
      base.members.push_back(std::move(member));
    } else {
      if (member.value.kind != TomlValue::Kind::kTable) same->where = member.where;
      merge_toml(same->value, std::move(member.value));
    }
  }
}

Result<std::string> read_text_file(const std::string& file, size_t max_bytes) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return Error{ErrorCode::kIo, "cannot be opened", {file}};
  std::string text(max_bytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad() || (stream.fail() && !stream.eof())) return Error{ErrorCode::kIo, "cannot be read", {file}};
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > max_bytes) return invalid_file(fmt::format("the file has more than {} bytes", max_bytes), {file});
  return text;
}

}  // namespace glim
