#include "engine/parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <unordered_set>

#include "engine/suggest.h"
#include "engine/verify.h"

namespace glim {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // ids and pool offsets have 32 bits
constexpr LeafKind kLeafKinds[] = {LeafKind::kInput, LeafKind::kSeed, LeafKind::kParameter, LeafKind::kGradient, LeafKind::kOptimizer};

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.' || c == '+' || c == '-';
}

// Recursive descent without recursion: a statement is one line.
class Parser {
 public:
  Parser(std::string_view text, const OpTable& table, std::string_view file) : rest_(text), file_(file), graph_(table) {}

  Result<Graph> run() {
    if (rest_.size() > kMaxTextBytes) return fail(0, "the text is over the limit of 1 GiB");
    for (; !rest_.empty(); ++line_number_) {
      const size_t end = std::min(rest_.find('\n'), rest_.size());
      line_ = rest_.substr(0, end);
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      at_ = 0;
      GLIM_TRY(statement());
    }
    GLIM_TRY(verify(graph_));
    return std::move(graph_);
  }

 private:
  // ---- characters and tokens of a line
  Error fail(size_t at, std::string message) const {
    return invalid_file(std::move(message), {std::string(file_), line_number_, static_cast<int>(at) + 1});
  }
  void skip_blanks() {
    while (at_ < line_.size() && (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r')) ++at_;
    if (line_.substr(at_).starts_with("//")) at_ = line_.size();
  }
  // What stands here, for messages.
  std::string found() const {
    if (at_ >= line_.size()) return "the end of the line";
    size_t end = at_;
    while (end < line_.size() && end < at_ + 40 && is_word(line_[end])) ++end;
    const std::string_view text = line_.substr(at_, std::max<size_t>(end - at_, 1));
    const auto byte = static_cast<unsigned char>(text[0]);
    return byte < 0x20 || byte >= 0x7f ? fmt::format("byte 0x{:02x}", byte) : fmt::format("'{}'", text);
  }
  bool accept(char c) {
    skip_blanks();
    if (at_ >= line_.size() || line_[at_] != c) return false;
    ++at_;
    return true;
  }
  Status expect(char c) {
    if (accept(c)) return ok();
    return fail(at_, fmt::format("expected '{}', found {}", c, found()));
  }
  std::string_view word() {
    skip_blanks();
    const size_t begin = at_;
    while (at_ < line_.size() && is_word(line_[at_])) ++at_;
    return line_.substr(begin, at_ - begin);
  }
  template <class Number>
  Result<Number> number(std::string_view what) {
    skip_blanks();
    const size_t begin = at_;
    const std::string_view text = word();
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range) return fail(begin, fmt::format("{} is out of range: {:.40}", what, text));
    if (text.empty() || error != std::errc{} || end != text.data() + text.size()) {
      at_ = begin;
      return fail(begin, fmt::format("expected {}, found {}", what, found()));
    }
    return value;
  }
  Result<std::string> name() {
    GLIM_TRY(expect('"'));
    std::string text;
    while (at_ < line_.size() && line_[at_] != '"') {
      if (line_[at_] != '\\') {
        text += line_[at_++];
        continue;
      }
      const std::string_view escape = line_.substr(at_);
      unsigned byte = 0;
      if (escape.size() >= 2 && (escape[1] == '"' || escape[1] == '\\')) {
        text += escape[1];
        at_ += 2;
      } else if (escape.size() >= 4 && escape[1] == 'x' &&
                 std::from_chars(escape.data() + 2, escape.data() + 4, byte, 16).ptr == escape.data() + 4) {
        text += static_cast<char>(byte);
        at_ += 4;
      } else {
        return fail(at_, R"(an escape in a name is \", \\ or \x and two hexadecimal digits)");
      }
    }
    if (at_ >= line_.size()) return fail(at_, "the name has no closing '\"'");
    ++at_;
    return text;
  }
  Result<uint32_t> number_of_value() {
    GLIM_TRY(expect('%'));
    return number<uint32_t>("the number of a value");
  }
  Result<ValueId> defined_value() {
    skip_blanks();
    const size_t begin = at_;
    GLIM_ASSIGN(const uint32_t id, number_of_value());
    const auto found_id = values_.find(id);
    if (found_id == values_.end()) return fail(begin, fmt::format("%{} is not defined above", id));
    return found_id->second;
  }
  Result<TensorType> type() {
    skip_blanks();
    const size_t begin = at_;
    const std::string_view text = word();
    const std::optional<DType> dtype = parse_dtype(text);
    if (!dtype) {
      at_ = begin;
      constexpr std::string_view kDTypes[] = {"f64", "f32", "bf16", "i64", "i32"};
      return fail(begin, fmt::format("expected a type such as f32[2,3], found {}{}", found(), did_you_mean(text, kDTypes)));
    }
    GLIM_TRY(expect('['));
    std::vector<int64_t> dims;
    if (!accept(']')) {
      do {
        if (dims.size() > kMaxRank) break;  // make_shape says what is wrong
        GLIM_ASSIGN(const int64_t dim, number<int64_t>("a dimension"));
        dims.push_back(dim);
      } while (accept(','));
      if (dims.size() <= kMaxRank) GLIM_TRY(expect(']'));
    }
    const Result<Shape> shape = make_shape(dims);
    if (!shape) return fail(begin, shape.error().message);
    return TensorType{*dtype, *shape};
  }

  // ---- statements
  Status statement() {
    skip_blanks();
    if (at_ >= line_.size()) return ok();
    if (line_[at_] == '%') {
      GLIM_TRY(definition());
    } else {
      const size_t begin = at_;
      const std::string_view keyword = word();
      if (keyword == "output") {
        GLIM_TRY(output());
      } else if (keyword == "update") {
        GLIM_TRY(update());
      } else {
        at_ = begin;
        constexpr std::string_view kKeywords[] = {"output", "update"};
        return fail(
            begin, fmt::format("expected a value such as %0, 'output' or 'update', found {}{}", found(), did_you_mean(keyword, kKeywords)));
      }
    }
    skip_blanks();
    if (at_ < line_.size()) return fail(at_, fmt::format("expected the end of the line, found {}", found()));
    return ok();
  }

  Status output() {
    skip_blanks();
    const size_t begin = at_;
    GLIM_ASSIGN(std::string output_name, name());
    if (!output_names_.insert(output_name).second) return fail(begin, fmt::format("two outputs are named '{}'", output_name));
    GLIM_TRY(expect('='));
    GLIM_ASSIGN(const ValueId value, defined_value());
    graph_.add_output(output_name, value);
    return ok();
  }

  Status update() {
    skip_blanks();
    const size_t begin = at_;
    GLIM_ASSIGN(const ValueId state, defined_value());
    if (!graph_.is_leaf(state) || !is_state(graph_.leaf(state).kind)) {
      return fail(begin, "only state can be updated: a parameter, gradient or optimizer leaf");
    }
    const std::string& leaf_name = graph_.leaf(state).name;
    if (!updated_.insert(state.index).second) return fail(begin, fmt::format("'{}' is updated twice", leaf_name));
    GLIM_TRY(expect('='));
    skip_blanks();
    const size_t next_at = at_;
    GLIM_ASSIGN(const ValueId next, defined_value());
    if (graph_.type(next) != graph_.type(state)) {
      return fail(next_at,
                  fmt::format("'{}' is {}, its update is {}", leaf_name, to_string(graph_.type(state)), to_string(graph_.type(next))));
    }
    graph_.add_update(state, next);
    return ok();
  }

  // %a, %b = ...
  Status definition() {
    std::vector<uint32_t> ids;
    do {
      skip_blanks();
      const size_t begin = at_;
      GLIM_ASSIGN(const uint32_t id, number_of_value());
      if (!values_.try_emplace(id).second) return fail(begin, fmt::format("%{} is defined already", id));
      ids.push_back(id);
    } while (accept(','));
    for (const uint32_t id : ids) values_.erase(id);  // not to be used before it exists
    GLIM_TRY(expect('='));
    skip_blanks();
    const size_t begin = at_;
    const std::string_view what = word();
    skip_blanks();
    if (at_ < line_.size() && line_[at_] == '"') return leaf(ids, what, begin);
    if (at_ < line_.size() && line_[at_] == '(') return node(ids, what, begin);
    if (what.empty()) return fail(at_, fmt::format("expected an op or a kind of leaf, found {}", found()));
    return fail(at_, fmt::format("expected '(' after an op or a name after a kind of leaf, found {}", found()));
  }

  Status leaf(std::span<const uint32_t> ids, std::string_view what, size_t begin) {
    const auto kind = std::find_if(std::begin(kLeafKinds), std::end(kLeafKinds), [&](LeafKind k) { return to_string(k) == what; });
    if (kind == std::end(kLeafKinds)) {
      std::vector<std::string_view> kinds;
      for (const LeafKind k : kLeafKinds) kinds.push_back(to_string(k));
      return fail(begin, fmt::format("'{:.60}' is no kind of leaf{}", what, did_you_mean(what, kinds)));
    }
    if (ids.size() != 1) return fail(begin, "a leaf is one value");
    const size_t name_at = at_;
    GLIM_ASSIGN(std::string leaf_name, name());
    if (!leaf_names_.insert(leaf_name).second) return fail(name_at, fmt::format("two leaves are named '{}'", leaf_name));
    GLIM_TRY(expect(':'));
    GLIM_ASSIGN(const TensorType leaf_type, type());
    values_[ids[0]] = graph_.add_leaf(*kind, leaf_name, leaf_type);
    return ok();
  }

  Status node(std::span<const uint32_t> ids, std::string_view what, size_t begin) {
    const std::optional<OpId> op = graph_.table().find(what);
    if (!op || *op == kLeafOp) {
      std::vector<std::string_view> names = graph_.table().names();
      std::erase(names, graph_.table()[kLeafOp].name);
      return fail(begin, fmt::format("no op is named '{:.60}'{}", what, did_you_mean(what, names)));
    }
    std::vector<ValueId> operands;
    GLIM_TRY(expect('('));
    if (!accept(')')) {
      do {
        if (accept('_')) {
          operands.push_back({});
        } else {
          GLIM_ASSIGN(const ValueId operand, defined_value());
          operands.push_back(operand);
        }
      } while (accept(','));
      GLIM_TRY(expect(')'));
    }
    GLIM_ASSIGN(const std::vector<uint32_t> words, attrs(graph_.table()[*op], begin));
    const Result<NodeId> emitted = graph_.emit(*op, operands, std::span<const uint32_t>(words));
    if (!emitted) return fail(begin, emitted.error().message);
    const Node built = graph_.node(*emitted);
    if (built.num_outputs != ids.size())
      return fail(begin, fmt::format("{} has {} outputs here, not {}", what, built.num_outputs, ids.size()));
    for (uint32_t k = 0; k < ids.size(); ++k) values_[ids[k]] = graph_.output(*emitted, k);
    if (!accept(':')) return ok();
    for (uint32_t k = 0; k < ids.size(); ++k) {
      if (k > 0) GLIM_TRY(expect(','));
      skip_blanks();
      const size_t type_at = at_;
      GLIM_ASSIGN(const TensorType declared, type());
      const TensorType& inferred = graph_.type(graph_.output(*emitted, k));
      if (declared != inferred)
        return fail(type_at, fmt::format("{} gives {} here, not {}", what, to_string(inferred), to_string(declared)));
    }
    return ok();
  }

  Result<std::vector<uint32_t>> attrs(const OpDef& def, size_t op_at) {
    std::vector<uint32_t> words = default_words(def.attrs);
    std::vector<bool> given(def.attrs.size(), false);
    if (accept('{') && !accept('}')) {
      do {
        skip_blanks();
        const size_t begin = at_;
        const std::string_view key = word();
        if (key.empty()) return fail(begin, fmt::format("expected the name of an attribute, found {}", found()));
        const auto spec = std::find_if(def.attrs.begin(), def.attrs.end(), [&](const AttrSpec& s) { return s.name == key; });
        if (spec == def.attrs.end()) {
          std::vector<std::string_view> names;
          for (const AttrSpec& s : def.attrs) names.push_back(s.name);
          return fail(begin, fmt::format("{} has no attribute '{:.60}'{}", def.name, key, did_you_mean(key, names)));
        }
        const auto k = static_cast<size_t>(spec - def.attrs.begin());
        if (given[k]) return fail(begin, fmt::format("attribute '{}' is given twice", key));
        given[k] = true;
        GLIM_TRY(expect('='));
        GLIM_TRY(attr(*spec, words, k));
      } while (accept(','));
      GLIM_TRY(expect('}'));
    }
    for (size_t k = 0; k < def.attrs.size(); ++k) {
      if (def.attrs[k].required && !given[k]) return fail(op_at, fmt::format("{} needs its attribute '{}'", def.name, def.attrs[k].name));
    }
    return words;
  }

  Status attr(const AttrSpec& spec, std::span<uint32_t> words, size_t k) {
    if (spec.kind == AttrKind::kReal) {
      GLIM_ASSIGN(const double value, number<double>("a number"));
      set_real(words, k, value);
      return ok();
    }
    if (spec.kind == AttrKind::kInteger) {
      GLIM_ASSIGN(const int64_t value, number<int64_t>("an integer"));
      set_integer(words, k, value);
      return ok();
    }
    constexpr std::string_view kBools[] = {"false", "true"};
    const std::span<const std::string_view> choices =
        spec.kind == AttrKind::kBool ? std::span<const std::string_view>(kBools) : spec.choices;
    skip_blanks();
    const size_t begin = at_;
    const std::string_view text = word();
    const auto choice = std::find(choices.begin(), choices.end(), text);
    if (choice == choices.end()) {
      at_ = begin;
      return fail(begin,
                  fmt::format("'{}' is one of {}, not {}{}", spec.name, fmt::join(choices, ", "), found(), did_you_mean(text, choices)));
    }
    set_integer(words, k, choice - choices.begin());
    return ok();
  }

  std::string_view rest_, line_, file_;
  int line_number_ = 1;
  size_t at_ = 0;  // in line_
  Graph graph_;
  std::unordered_map<uint32_t, ValueId> values_;  // by their number in the text
  std::unordered_set<std::string> leaf_names_, output_names_;
  std::unordered_set<uint32_t> updated_;
};

}  // namespace

Result<Graph> parse(std::string_view text, const OpTable& table, std::string_view file) { return Parser(text, table, file).run(); }

}  // namespace glim
