#include "models/strict_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "engine/quote.h"

namespace glim {
namespace {

using nlohmann::json;

// Walks the text without building anything and stops at the first thing that is not allowed.
class StrictCheck final : public nlohmann::json_sax<json> {
 public:
  explicit StrictCheck(size_t max_values) : max_values_(max_values) {}
  [[nodiscard]] const std::string& problem() const { return problem_; }

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t&) override { return value(); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    return fail(fmt::format("the key {} appears twice in one object", quote(name)));
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // The library's text is "[json.exception.parse_error.101] parse error at line 1, column 2: ...".
    const std::string_view text = error.what();
    const size_t begin = text.find("] ");
    return fail(fmt::format("byte {}: {}", position, text.substr(begin == std::string_view::npos ? 0 : begin + 2)));
  }

 private:
  bool fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  bool value() { return ++num_values_ <= max_values_ || fail(fmt::format("it has more than {} values", max_values_)); }
  bool open() {
    if (keys_.size() == kMaxJsonDepth) return fail(fmt::format("nested deeper than {} levels", kMaxJsonDepth));
    keys_.emplace_back();
    return value();
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  size_t max_values_, num_values_ = 0;
  std::vector<std::set<std::string>> keys_;  // of the open objects; empty for arrays
  std::string problem_;
};

}  // namespace

Result<json> parse_strict_json(std::string_view text, const std::string& path, size_t max_values) {
  if (text.find('\0') != std::string_view::npos) return invalid_file(fmt::format("{}: bad JSON: it has a NUL byte", path));
  StrictCheck check(max_values);
  if (!json::sax_parse(text, &check)) return invalid_file(fmt::format("{}: bad JSON: {}", path, printable(check.problem())));
  return json::parse(text, nullptr, false);
}

}  // namespace glim
