#include "models/expression.h"

#include <gtest/gtest.h>

namespace glim {
namespace {

Result<Quantity> look_up(std::string_view name, const SourceLocation& where) {
  if (name == "n") return Quantity(integer_number(6));
  if (name == "half") return Quantity(real_number(0.5));
  if (name == "yes") return Quantity(true);
  if (name == "no") return Quantity(false);
  return invalid_argument("unknown", where);
}
const SourceLocation kWhere{"m.toml", 3, 10};  // of the quote

std::string number(std::string_view text) {
  const Result<Number> value = evaluate_number(text, kWhere, look_up);
  if (!value) return value.error().to_string();
  return value->is_integer ? std::to_string(value->integer) : "real " + std::to_string(value->real);
}

TEST(Expression, Arithmetic) {
  EXPECT_EQ(number("1 + 2 * 3"), "7");
  EXPECT_EQ(number("(1 + 2) * 3"), "9");
  EXPECT_EQ(number("10 - 4 - 3"), "3");
  EXPECT_EQ(number("n / 3"), "2");
  EXPECT_EQ(number("n / 4"), "real 1.500000");
  EXPECT_EQ(number("n // 4"), "1");
  EXPECT_EQ(number("-7 // 2"), "-4");
  EXPECT_EQ(number("7 // -2"), "-4");
  EXPECT_EQ(number("24 / 2 / 3"), "4");
  EXPECT_EQ(number("2 ^ 3 ^ 2"), "512");
  EXPECT_EQ(number("-2 ^ 2"), "-4");
  EXPECT_EQ(number("(0 - 1) ^ 9000000000000000001"), "-1");
  EXPECT_EQ(number("4 ^ -half"), "real 0.500000");
  EXPECT_EQ(number("1e3 * half"), "real 500.000000");
  EXPECT_EQ(number("2.0"), "real 2.000000");
  EXPECT_EQ(evaluate_number("26 ^ -0.5", kWhere, look_up)->real, 0.19611613513818404);
}

TEST(Expression, ErrorsStandAtTheirCharacter) {
  EXPECT_EQ(number("1 + x"), "m.toml:3:15: unknown");
  EXPECT_EQ(number(""), "m.toml:3:11: the expression ends where a number or a name should stand");
  EXPECT_EQ(number("n +"), "m.toml:3:14: the expression ends where a number or a name should stand");
  EXPECT_EQ(number("(n"), "m.toml:3:13: expected ')'");
  EXPECT_EQ(number("n n"), "m.toml:3:13: unexpected 'n'");
  EXPECT_EQ(number("n * *"), "m.toml:3:15: expected a number or a name");
  EXPECT_EQ(number("n + yes"), "m.toml:3:15: 'yes' is a flag, not a number");
  EXPECT_EQ(number("n / (n - 6)"), "m.toml:3:13: division by zero");
  EXPECT_EQ(number("9223372036854775807 + 1"), "m.toml:3:31: the result does not fit in 64 bits");
  EXPECT_EQ(number("9223372036854775807 * 2"), "m.toml:3:31: the result does not fit in 64 bits");
  EXPECT_EQ(number("(-9223372036854775807 - 1) / -1"), "m.toml:3:38: the result does not fit in 64 bits");
  EXPECT_EQ(number("-(-9223372036854775807 - 1)"), "m.toml:3:11: the result does not fit in 64 bits");
  EXPECT_EQ(number("10 ^ 19"), "m.toml:3:14: the result does not fit in 64 bits");
  EXPECT_EQ(number("1e308 * 10.0"), "m.toml:3:17: the result is not a finite number");
  EXPECT_EQ(number("(-1.0) ^ 0.5"), "m.toml:3:18: the result is not a finite number");
  EXPECT_EQ(number("1e999"), "m.toml:3:11: this number cannot be represented");
  for (const std::string& opening : {std::string("("), std::string("-"), std::string("2^")}) {
    std::string deep;
    for (int k = 0; k < 100'000; ++k) deep += opening;
    EXPECT_NE(number(deep).find("nested more than 16 deep"), std::string::npos);
  }
}

std::string condition(std::string_view text) {
  const Result<bool> value = evaluate_condition(text, kWhere, look_up);
  return value ? (*value ? "true" : "false") : value.error().to_string();
}

TEST(Expression, Conditions) {
  EXPECT_EQ(condition("yes"), "true");
  EXPECT_EQ(condition("not yes"), "false");
  EXPECT_EQ(condition("yes and no or yes"), "true");
  EXPECT_EQ(condition("yes or yes and no"), "true");
  EXPECT_EQ(condition("(yes or yes) and no"), "false");
  EXPECT_EQ(condition("not no and not (no or false)"), "true");
  EXPECT_EQ(condition("n"), "m.toml:3:11: 'n' is a number, not a flag");
  EXPECT_EQ(condition("yes and"), "m.toml:3:18: the condition ends where a flag should stand");
  EXPECT_EQ(condition("yes no"), "m.toml:3:15: unexpected 'n'");
}

}  // namespace
}  // namespace glim
