#pragma once
// Arithmetic and conditions over names, as they stand in model files: "num_heads * head_dim", "head_dim ^ -0.5", "rope and not tied".
#include <cstdint>
#include <functional>
#include <string_view>
#include <variant>

#include "engine/error.h"

namespace glim {

struct Number {
  bool is_integer = true;
  int64_t integer = 0;  // of an integer
  double real = 0;      // always
};
[[nodiscard]] inline Number integer_number(int64_t value) { return {true, value, static_cast<double>(value)}; }
[[nodiscard]] inline Number real_number(double value) { return {false, 0, value}; }

// What a name stands for: a number or a flag.
using Quantity = std::variant<Number, bool>;
using Lookup = std::function<Result<Quantity>(std::string_view name, const SourceLocation& where)>;

inline constexpr int kMaxExpressionDepth = 16;  // parentheses, signs and powers; small, because names nest expressions

// + - * / // ^ and parentheses. Integers stay integers while the result is one: 6 / 2 is the integer 3, 7 / 2 the real 3.5, 7 // 2 (floor)
// the integer 3. ^ is the power and binds tighter than a sign on its left. Overflow, division by zero and results that are not
// finite are errors. `where` is the place of the opening quote; an error stands at the character that it is about.
Result<Number> evaluate_number(std::string_view text, const SourceLocation& where, const Lookup& look_up);

// not, and, or, parentheses, true, false, names of flags.
Result<bool> evaluate_condition(std::string_view text, const SourceLocation& where, const Lookup& look_up);

[[nodiscard]] bool is_identifier(std::string_view text);  // [A-Za-z_][A-Za-z0-9_]*

}  // namespace glim
