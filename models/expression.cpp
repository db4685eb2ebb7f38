#include "models/expression.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace glim {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Parser {
 public:
  Parser(std::string_view text, const SourceLocation& where, const Lookup& look_up) : text_(text), where_(where), look_up_(look_up) {}

  Result<Number> number() {
    GLIM_ASSIGN(const Number value, sum());
    GLIM_TRY(expect_end());
    return value;
  }
  Result<bool> condition() {
    GLIM_ASSIGN(const bool value, any());
    GLIM_TRY(expect_end());
    return value;
  }

 private:
  // sum := product (("+" | "-") product)*
  Result<Number> sum() {
    GLIM_ASSIGN(Number left, product());
    while (true) {
      const size_t at = skip_space();
      if (!accept("+") && !accept("-")) return left;
      const char op = text_[at];
      GLIM_ASSIGN(const Number right, product());
      GLIM_ASSIGN(left, combine(op, left, right, at));
    }
  }

  // product := sign (("*" | "/" | "//") sign)*
  Result<Number> product() {
    GLIM_ASSIGN(Number left, sign());
    while (true) {
      const size_t at = skip_space();
      char op = 0;
      if (accept("//"))
        op = 'f';
      else if (accept("*") || accept("/"))
        op = text_[at];
      else
        return left;
      GLIM_ASSIGN(const Number right, sign());
      GLIM_ASSIGN(left, combine(op, left, right, at));
    }
  }

  // sign := "-" sign | power
  Result<Number> sign() {
    const size_t at = skip_space();
    if (!accept("-")) return power();
    GLIM_TRY(deeper(at));
    GLIM_ASSIGN(const Number value, sign());
    --depth_;
    return combine('-', integer_number(0), value, at);
  }

  // power := primary ("^" sign)?
  Result<Number> power() {
    GLIM_ASSIGN(const Number base, primary());
    const size_t at = skip_space();
    if (!accept("^")) return base;
    GLIM_TRY(deeper(at));
    GLIM_ASSIGN(const Number exponent, sign());
    --depth_;
    return combine('^', base, exponent, at);
  }

  // primary := literal | name | "(" sum ")"
  Result<Number> primary() {
    const size_t at = skip_space();
    if (accept("(")) {
      GLIM_TRY(deeper(at));
      GLIM_ASSIGN(const Number value, sum());
      --depth_;
      GLIM_TRY(expect(")"));
      return value;
    }
    if (at < text_.size() && (is_digit(text_[at]) || text_[at] == '.')) return literal();
    const std::string_view name = accept_name();
    if (name.empty())
      return error(at, at == text_.size() ? "the expression ends where a number or a name should stand" : "expected a number or a name");
    GLIM_ASSIGN(const Quantity value, look_up_(name, place(at)));
    if (const Number* number = std::get_if<Number>(&value)) return *number;
    return error(at, fmt::format("'{}' is a flag, not a number", name));
  }

  Result<Number> literal() {
    const size_t begin = at_;
    const char* const first = text_.data() + begin;
    const char* const last = text_.data() + text_.size();
    int64_t integer = 0;
    double real = 0;
    const auto as_integer = std::from_chars(first, last, integer);
    const auto as_real = std::from_chars(first, last, real);
    const bool is_integer = as_integer.ec == std::errc() && as_real.ptr == as_integer.ptr;
    if (!is_integer && (as_real.ec != std::errc() || !std::isfinite(real))) return error(begin, "this number cannot be represented");
    at_ = static_cast<size_t>(as_real.ptr - text_.data());
    return is_integer ? integer_number(integer) : real_number(real);
  }

  // any := all ("or" all)*     all := negation ("and" negation)*
  Result<bool> any() {
    GLIM_ASSIGN(bool value, all());
    while (accept_word("or")) {
      GLIM_ASSIGN(const bool right, all());
      value = value || right;
    }
    return value;
  }
  Result<bool> all() {
    GLIM_ASSIGN(bool value, negation());
    while (accept_word("and")) {
      GLIM_ASSIGN(const bool right, negation());
      value = value && right;
    }
    return value;
  }
  // negation := "not" negation | "(" any ")" | "true" | "false" | name
  Result<bool> negation() {
    const size_t at = skip_space();
    if (accept_word("not")) {
      GLIM_TRY(deeper(at));
      GLIM_ASSIGN(const bool value, negation());
      --depth_;
      return !value;
    }
    if (accept("(")) {
      GLIM_TRY(deeper(at));
      GLIM_ASSIGN(const bool value, any());
      --depth_;
      GLIM_TRY(expect(")"));
      return value;
    }
    const std::string_view name = accept_name();
    if (name.empty()) return error(at, at == text_.size() ? "the condition ends where a flag should stand" : "expected a flag");
    if (name == "true" || name == "false") return name == "true";
    GLIM_ASSIGN(const Quantity value, look_up_(name, place(at)));
    if (const bool* flag = std::get_if<bool>(&value)) return *flag;
    return error(at, fmt::format("'{}' is a number, not a flag", name));
  }

  // 'f' is the floor division.
  Result<Number> combine(char op, const Number& a, const Number& b, size_t at) const {
    if ((op == '/' || op == 'f') && b.real == 0) return error(at, "division by zero");
    if (a.is_integer && b.is_integer) {
      int64_t result = 0;
      bool overflow = false;
      switch (op) {
        case '+': overflow = __builtin_add_overflow(a.integer, b.integer, &result); break;
        case '-': overflow = __builtin_sub_overflow(a.integer, b.integer, &result); break;
        case '*': overflow = __builtin_mul_overflow(a.integer, b.integer, &result); break;
        case '/':
        case 'f':
          if (a.integer == INT64_MIN && b.integer == -1) return error(at, "the result does not fit in 64 bits");
          if (op == '/' && a.integer % b.integer != 0) return real_number(a.real / b.real);
          result = a.integer / b.integer - ((a.integer % b.integer != 0 && (a.integer < 0) != (b.integer < 0)) ? 1 : 0);
          break;
        case '^':
          if (b.integer < 0) return finite(std::pow(a.real, b.real), at);
          result = 1;
          // |base| > 1 overflows within 63 steps; the others do not need more than two.
          for (int64_t k = a.integer >= -1 && a.integer <= 1 && b.integer > 2 ? b.integer % 2 + 2 : b.integer; k > 0 && !overflow; --k) {
            overflow = __builtin_mul_overflow(result, a.integer, &result);
          }
          break;
        default: break;
      }
      if (overflow) return error(at, "the result does not fit in 64 bits");
      return integer_number(result);
    }
    switch (op) {
      case '+': return finite(a.real + b.real, at);
      case '-': return finite(a.real - b.real, at);
      case '*': return finite(a.real * b.real, at);
      case '/': return finite(a.real / b.real, at);
      case 'f': return finite(std::floor(a.real / b.real), at);
      default: return finite(std::pow(a.real, b.real), at);
    }
  }
  Result<Number> finite(double value, size_t at) const {
    if (!std::isfinite(value)) return error(at, "the result is not a finite number");
    return real_number(value);
  }

  size_t skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
    return at_;
  }
  bool accept(std::string_view token) {
    skip_space();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }
  std::string_view accept_name() {
    const size_t begin = skip_space();
    if (at_ < text_.size() && is_letter(text_[at_])) {
      while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]))) ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }
  bool accept_word(std::string_view word) {
    const size_t before = skip_space();
    if (accept_name() == word) return true;
    at_ = before;
    return false;
  }
  Status expect(std::string_view token) {
    if (accept(token)) return ok();
    return error(at_, fmt::format("expected '{}'", token));
  }
  Status expect_end() {
    if (skip_space() == text_.size()) return ok();
    return error(at_, fmt::format("unexpected '{}'", text_[at_]));
  }
  Status deeper(size_t at) {
    if (++depth_ > kMaxExpressionDepth) return error(at, fmt::format("the expression is nested more than {} deep", kMaxExpressionDepth));
    return ok();
  }
  [[nodiscard]] SourceLocation place(size_t at) const {
    if (where_.line == 0) return where_;  // not from a text file
    return {where_.file, where_.line, where_.column + 1 + static_cast<int>(at)};
  }
  [[nodiscard]] Error error(size_t at, std::string message) const { return invalid_argument(std::move(message), place(at)); }

  std::string_view text_;
  const SourceLocation& where_;
  const Lookup& look_up_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

Result<Number> evaluate_number(std::string_view text, const SourceLocation& where, const Lookup& look_up) {
  return Parser(text, where, look_up).number();
}

Result<bool> evaluate_condition(std::string_view text, const SourceLocation& where, const Lookup& look_up) {
  return Parser(text, where, look_up).condition();
}

bool is_identifier(std::string_view text) {
  if (text.empty() || !is_letter(text[0])) return false;
  for (const char c : text) {
    if (!is_letter(c) && !is_digit(c)) return false;
  }
  return true;
}

}  // namespace glim
