#include "runtime/data/json_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/quote.h"
#include "engine/suggest.h"
#include "models/strict_json.h"

namespace glim {
namespace {

using nlohmann::json;

enum Key : size_t { kText, kPrompt, kCompletion, kInputIds, kLabels, kNumKeys };
constexpr std::string_view kKeys[] = {"text", "prompt", "completion", "input_ids", "labels"};
constexpr std::string_view kForms = R"({"text"}, {"prompt", "completion"} or {"input_ids", "labels"})";

// One line, read without building a tree: what it holds goes straight to `texts` and `ids`; the first thing that is wrong stops it.
class DocumentReader final : public nlohmann::json_sax<json> {
 public:
  DocumentReader(const Vocabulary& vocabulary, std::span<const std::string> ignored) : vocabulary_(vocabulary), ignored_(ignored) {}

  // The tokens of the document and which are labels (empty: all), until the next call. False: see problem() and column().
  bool read(std::string_view line) {
    problem_.clear();
    column_ = 0;
    depth_ = 0;
    found_.fill(false);
    seen_.clear();
    for (std::string& text : texts_) text.clear();
    ids_.clear();
    labels_.clear();
    is_label_.clear();
    return json::sax_parse(line, this) && assemble();
  }
  [[nodiscard]] const std::vector<int32_t>& ids() const { return ids_; }
  [[nodiscard]] const std::vector<uint8_t>& is_label() const { return is_label_; }
  [[nodiscard]] const std::string& problem() const { return problem_; }
  [[nodiscard]] size_t column() const { return column_; }  // 0: unknown

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(number_integer_t number) override { return integer(number); }
  bool number_unsigned(number_unsigned_t number) override {
    if (number > INT64_MAX && in_list()) return fail(not_a_token(number));
    return integer(static_cast<int64_t>(number));
  }
  bool number_float(number_float_t, const string_t& digits) override {
    if (!in_list()) return value("a number");
    return fail(fmt::format("{} is {}, expected an integer", element(), printable(digits)));
  }
  bool string(string_t& text) override {
    if (depth_ != 1 || key_ > kCompletion) return value("a string");
    texts_[key_] = std::move(text);
    return true;
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override {
    if (depth_ > 0 && !value("an object")) return false;
    return open();
  }
  bool end_object() override { return close(); }
  bool start_array(size_t) override {
    if (depth_ == 1 && (key_ == kInputIds || key_ == kLabels)) return open();
    return value("an array") && open();
  }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (depth_ > 1) return true;  // inside of something ignored
    if (!seen_.insert(name).second) return fail(fmt::format("the key {} appears twice", quote(name)));
    key_ = kNumKeys;
    if (std::find(ignored_.begin(), ignored_.end(), name) != ignored_.end()) return true;
    key_ = static_cast<size_t>(std::find(std::begin(kKeys), std::end(kKeys), name) - std::begin(kKeys));
    if (key_ == kNumKeys) {
      return fail(fmt::format("unknown key {}, expected {}, or others that 'ignored_keys' lists{}", quote(name), kForms,
                              did_you_mean(name, kKeys)));
    }
    return found_[key_] = true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // The library's text is "[json.exception.parse_error.101] parse error at line 1, column 2: ...": our place is better.
    std::string_view text = error.what();
    for (const std::string_view mark : {"] ", ": "}) {
      if (const size_t at = text.find(mark); at != std::string_view::npos) text.remove_prefix(at + mark.size());
    }
    column_ = position;
    return fail(fmt::format("bad JSON: {}", printable(text)));
  }

 private:
  bool fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  [[nodiscard]] bool in_list() const { return depth_ == 2 && (key_ == kInputIds || key_ == kLabels); }
  [[nodiscard]] std::string element() const {
    return fmt::format("'{}'[{}]", kKeys[key_], key_ == kInputIds ? ids_.size() : labels_.size());
  }
  // A value that is right only where things are ignored.
  bool value(std::string_view what) {
    if (depth_ == 0) return fail(fmt::format("the line is {}, expected an object: {}", what, kForms));
    if (key_ == kNumKeys) return true;
    if (in_list()) return fail(fmt::format("{} is {}, expected an integer", element(), what));
    return fail(fmt::format("'{}' must be {}, not {}", kKeys[key_], key_ <= kCompletion ? "a string" : "an array of integers", what));
  }
  [[nodiscard]] std::string not_a_token(auto number) const {
    return fmt::format("{} is {}, expected a token, 0 to {}{}", element(), number, vocabulary_.size - 1,
                       key_ == kLabels ? ", or -100" : "");
  }
  bool integer(int64_t number) {
    if (!in_list()) return value("a number");
    const bool is_ignored = key_ == kLabels && number == kIgnoredLabel;
    if (!is_ignored && (number < 0 || number >= vocabulary_.size)) return fail(not_a_token(number));
    (key_ == kLabels ? labels_ : ids_).push_back(static_cast<int32_t>(number));
    return true;
  }
  bool open() { return ++depth_ <= kMaxJsonDepth || fail(fmt::format("nested deeper than {} levels", kMaxJsonDepth)); }
  bool close() {
    --depth_;
    return true;
  }

  bool assemble() {
    const bool prompt = found_[kPrompt] || found_[kCompletion], list = found_[kInputIds] || found_[kLabels];
    if (int{found_[kText]} + int{prompt} + int{list} != 1) {
      std::string names;
      for (size_t k = 0; k < kNumKeys; ++k) {
        if (found_[k]) names += fmt::format("{}'{}'", names.empty() ? "" : ", ", kKeys[k]);
      }
      return fail(names.empty() ? fmt::format("the document is empty, expected {}", kForms)
                                : fmt::format("the document has {}, expected {}", names, kForms));
    }
    if (prompt && !found_[kPrompt]) return fail("'completion' without 'prompt'");
    if (prompt && !found_[kCompletion]) return fail("'prompt' without 'completion'");
    if (list && !found_[kInputIds]) return fail("'labels' without 'input_ids'");
    if (list) return assemble_labels();
    if (!vocabulary_.is_bytes) return fail(fmt::format("'{}' is text, {}", kKeys[prompt ? kPrompt : kText], kNoTokenizer));
    for (size_t k = kText; k <= kCompletion; ++k) {
      encode(texts_[k], ids_);
      if (prompt) is_label_.resize(ids_.size(), k == kCompletion ? 1 : 0);
    }
    for (size_t i = 0; i < ids_.size() && vocabulary_.size < 256; ++i) {
      if (ids_[i] >= vocabulary_.size)
        return fail(fmt::format("byte {} of the text is {}, expected a token, 0 to {}", i, ids_[i], vocabulary_.size - 1));
    }
    return true;
  }
  bool assemble_labels() {
    if (!found_[kLabels]) return true;
    if (labels_.size() != ids_.size())
      return fail(fmt::format("'labels' has {} elements and 'input_ids' {}, expected as many", labels_.size(), ids_.size()));
    for (size_t i = 0; i < ids_.size(); ++i) {
      if (labels_[i] != kIgnoredLabel && labels_[i] != ids_[i]) {
        return fail(
            fmt::format("'labels'[{}] is {}, expected -100 or the token there, {} (labels are not shifted)", i, labels_[i], ids_[i]));
      }
      is_label_.push_back(labels_[i] == kIgnoredLabel ? 0 : 1);
    }
    return true;
  }

  static constexpr int64_t kIgnoredLabel = -100;

  const Vocabulary& vocabulary_;
  std::span<const std::string> ignored_;
  std::array<bool, kNumKeys> found_{};
  std::set<std::string, std::less<>> seen_;
  std::array<std::string, 3> texts_;
  std::vector<int32_t> ids_, labels_;
  std::vector<uint8_t> is_label_;
  size_t key_ = kNumKeys, depth_ = 0, column_ = 0;
  std::string problem_;
};

}  // namespace

Result<TokenBlock> read_json_lines(std::string_view content, const std::string& path, const Vocabulary& vocabulary,
                                   std::span<const std::string> ignored_keys) {
  TokenBlock block(path, vocabulary.size);
  DocumentReader reader(vocabulary, ignored_keys);
  int number = 0;
  while (!content.empty()) {
    const size_t length = std::min(content.find('\n'), content.size());
    const std::string_view line = content.substr(0, length);
    content.remove_prefix(std::min(length + 1, content.size()));
    if (number < INT32_MAX) ++number;
    const auto bad = [&](std::string problem, size_t column = 0) {
      return invalid_file(std::move(problem), {path, number, static_cast<int>(std::min<size_t>(column, INT32_MAX))});
    };
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (line.starts_with("\xef\xbb\xbf")) return bad("the line begins with a byte-order mark, expected UTF-8 without one", 1);
    if (const size_t nul = line.find('\0'); nul != std::string_view::npos) return bad("a NUL byte", nul + 1);
    if (!reader.read(line)) return bad(reader.problem(), reader.column());
    block.add_document(reader.ids(), reader.is_label());
  }
  return block;
}

}  // namespace glim
