// Documents that are not TOML, each in its own way: refused at their place with a text that says what is wrong there. They are here whether
// toml-test is installed (toml_suite_test.cpp) or not.
#include <gtest/gtest.h>

#include <set>

#include "models/spec.h"
#include "models/toml_file.h"
#include "tests/resource_bounds.h"

namespace glim {
namespace {

using namespace std::string_view_literals;

struct WrongDocument {
  std::string_view text;
  std::string_view error;  // "LINE:COLUMN: " and how the message begins, without the library's "Error while parsing "
};

// Not ASCII: octal, because it ends after three digits.
constexpr WrongDocument kWrong[] = {
    // Keys and the signs around them
    {"a", "1:2: key-value pair: encountered end-of-file"},
    {"a =", "1:4: key-value pair: encountered end-of-file"},
    {"a = 1 b = 2", "1:7: key-value pair: expected a comment or whitespace, saw 'b'"},
    {"= 1", "1:1: root table: expected keys, tables, whitespace or comments, saw '='"},
    {"a b = 1", "1:3: key-value pair: expected '=', saw 'b'"},
    {"a..b = 1", "1:3: key: expected bare key starting character or string delimiter, saw '.'"},
    {".a = 1", "1:1: root table: expected keys, tables, whitespace or comments, saw '.'"},
    {"a. = 1", "1:4: key: expected bare key starting character or string delimiter, saw '='"},
    {"\"a = 1", "1:7: string: encountered end-of-file"},
    {"'a = 1", "1:7: literal string: encountered end-of-file"},
    {"a\" = 1", "1:2: key-value pair: expected '=', saw '\"'"},
    {"\"\"\"a\"\"\" = 1", "1:1: key: multi-line strings are prohibited in keys"},
    {"'''a''' = 1", "1:1: key: multi-line strings are prohibited in keys"},
    {"a = = 1", "1:5: value: could not determine value type"},
    {"a == 1", "1:4: value: could not determine value type"},
    {"a : 1", "1:3: key-value pair: expected '=', saw ':'"},
    {"- = ", "1:5: key-value pair: encountered end-of-file"},
    {"a@b = 1", "1:2: key-value pair: expected '=', saw '@'"},
    {"a, b = 1", "1:2: key-value pair: expected '=', saw ','"},
    {"\"a\\q\" = 1", "1:4: string: unknown escape sequence '\\q'"},
    {"a\n= 1", "1:2: key-value pair: expected '=', saw '\\n'"},
    {"a =\n1", "1:4: key-value pair: expected value, saw '\\n'"},
    {"\"a\nb\" = 1", "1:3: string: unescaped control characters other than TAB (U+0009) are explicitly prohibited"},
    {"+a = 1", "1:1: root table: expected keys, tables, whitespace or comments, saw '+'"},
    {"a = 1, b = 2", "1:6: key-value pair: expected a comment or whitespace, saw ','"},
    {"[a] = 1", "1:5: table header: expected a comment or whitespace, saw '='"},
    {"{a = 1}", "1:1: root table: expected keys, tables, whitespace or comments, saw '{'"},
    {"\"\" \"\" = 1", "1:4: key-value pair: expected '=', saw '\"'"},
    // Keys given twice and tables that close
    {"a = 1\na = 2", "2:5: key-value pair: cannot redefine existing integer 'a'"},
    {"a = 1\n\"a\" = 2", "2:7: key-value pair: cannot redefine existing integer"},
    {"a = 1\n'a' = 2", "2:7: key-value pair: cannot redefine existing integer"},
    {"a = 1\na.b = 2", "2:1: key-value pair: cannot redefine existing integer as dotted key-value pair"},
    {"a.b = 1\na = 2", "2:5: key-value pair: cannot redefine existing table 'a'"},
    {"a.b = 1\na.b.c = 2", "2:3: key-value pair: cannot redefine existing integer as dotted key-value pair"},
    {"a = [1]\na.b = 2", "2:1: key-value pair: cannot redefine existing array as dotted key-value pair"},
    {"a = { b = 1 }\na.c = 2", "2:1: key-value pair: cannot redefine existing table as dotted key-value pair"},
    {"a = 1\n[a]", "2:1: table header: cannot redefine existing integer 'a' as table"},
    {"[a]\nb = 1\n[a]", "3:1: table header: cannot redefine existing table 'a'"},
    {"[a]\nb = 1\n[a.b]", "3:1: table header: cannot redefine existing integer 'a.b' as table"},
    {"a.b = 1\n[a]", "2:1: table header: cannot redefine existing table 'a'"},
    {"[[a]]\n[a]", "2:1: table header: cannot redefine existing array 'a' as table"},
    {"[a]\n[[a]]", "2:1: table header: cannot redefine existing table 'a' as array-of-tables"},
    {"a = [1]\n[[a]]", "2:1: table header: cannot redefine existing array 'a' as array-of-tables"},
    {"a = []\n[[a]]", "2:1: table header: cannot redefine existing array 'a' as array-of-tables"},
    {"[[a.b]]\n[a.b]", "2:1: table header: cannot redefine existing array 'a.b' as table"},
    {"[a.b]\n[a]\nb = 1", "3:5: key-value pair: cannot redefine existing table 'b'"},
    {"a = { b = 1 }\n[a.c]", "2:6: table header: cannot insert 'a.c' into existing inline table"},
    {"[a.b.c]\n[a]\nb.c.d = 1", "3:3: key-value pair: cannot redefine existing table as dotted key-value pair"},
    // Headers
    {"[", "1:2: table header: encountered end-of-file"},
    {"[]", "1:2: table header: tables with blank bare keys are explicitly prohibited"},
    {"[a", "1:3: table header: encountered end-of-file"},
    {"[a\n]", "1:3: table header: expected ']', saw '\\n'"},
    {"[a]]", "1:4: table header: expected a comment or whitespace, saw ']'"},
    {"[[a]", "1:5: table header: encountered end-of-file"},
    {"[[a] ]", "1:5: table header: expected ']', saw ' '"},
    {"[ [a]]", "1:3: table header: [[array-of-table]] brackets must be contiguous (i.e. [ [ this ] ] is prohibited)"},
    {"[a] b", "1:5: table header: expected a comment or whitespace, saw 'b'"},
    {"[a] b = 1", "1:5: table header: expected a comment or whitespace, saw 'b'"},
    {"[.a]", "1:2: key: expected bare key starting character or string delimiter, saw '.'"},
    {"[a.]", "1:4: key: expected bare key starting character or string delimiter, saw ']'"},
    {"[a..b]", "1:4: key: expected bare key starting character or string delimiter, saw '.'"},
    {"[a b]", "1:4: table header: expected ']', saw 'b'"},
    {"[\"a]", "1:5: string: encountered end-of-file"},
    {"[a]\n]", "2:1: root table: expected keys, tables, whitespace or comments, saw ']'"},
    {"[a]x", "1:4: table header: expected a comment or whitespace, saw 'x'"},
    {"[[]]", "1:3: table header: tables with blank bare keys are explicitly prohibited"},
    {"[=]", "1:2: key: expected bare key starting character or string delimiter, saw '='"},
    {"[a#]", "1:3: table header: expected ']', saw '#'"},
    // Strings
    {"a = \"", "1:6: string: encountered end-of-file"},
    {"a = '", "1:6: string: encountered end-of-file"},
    {"a = \"b", "1:7: string: encountered end-of-file"},
    {"a = 'b", "1:7: string: encountered end-of-file"},
    {"a = \"b\nc\"", "1:7: string: unescaped control characters other than TAB (U+0009) are explicitly prohibited"},
    {"a = 'b\nc'", "1:7: literal string: control characters other than TAB (U+0009) are explicitly prohibited"},
    {"a = \"\"\"b", "1:9: string: encountered end-of-file"},
    {"a = '''b", "1:9: literal string: encountered end-of-file"},
    {"a = \"\"\"b\"\"", "1:11: string: encountered end-of-file"},
    {"a = b", "1:5: value: could not determine value type"},
    {"a = \"b\"c", "1:8: key-value pair: expected a comment or whitespace, saw 'c'"},
    {"a = \"b\" \"c\"", "1:9: key-value pair: expected a comment or whitespace, saw '\"'"},
    {"a = \"\\q\"", "1:7: string: unknown escape sequence '\\q'"},
    {"a = \"\\", "1:7: string: encountered end-of-file"},
    {"a = \"\\u12\"", "1:10: unicode scalar sequence: expected hex digit, saw '\"'"},
    {"a = \"\\u12G4\"", "1:10: unicode scalar sequence: expected hex digit, saw 'G'"},
    {"a = \"\\ud800\"", "1:12: unicode scalar sequence: unicode surrogates (U+D800 - U+DFFF) are explicitly prohibited"},
    {"a = \"\\U00110000\"", "1:16: unicode scalar sequence: values greater than U+10FFFF are invalid"},
    {"a = \"\\U0000001\"", "1:15: unicode scalar sequence: expected hex digit, saw '\"'"},
    {"a = \"\\x41\"", "1:7: string: escape sequence '\\x' is not supported in TOML 1.0.0 and earlier"},
    {"a = \"b\\ c\"", "1:8: string: unknown escape sequence '\\ '"},
    {"a = \"\"\"\\ b\"\"\"", "1:10: string: line-ending backslashes must be the last non-whitespace character on the line"},
    {"a = \"\"\"b\\q\"\"\"", "1:10: string: unknown escape sequence '\\q'"},
    {"a = '''b''''''", "1:14: key-value pair: expected a comment or whitespace, saw '''"},
    {"a = \"\001\"", "1:6: string: unescaped control characters other than TAB (U+0009) are explicitly prohibited"},
    {"a = \"\177\"", "1:6: string: unescaped control characters other than TAB (U+0009) are explicitly prohibited"},
    {"a = '\002'", "1:6: literal string: control characters other than TAB (U+0009) are explicitly prohibited"},
    {"a = \"\"\"\013\"\"\"", "1:8: string: vertical tabs '\\v' and form-feeds '\\f' are not legal line breaks in TOML"},
    {"a = '''\037'''", "1:8: literal string: control characters other than TAB (U+0009) are explicitly prohibited"},
    {"a = \"\011\010\"", "1:7: string: unescaped control characters other than TAB (U+0009) are explicitly prohibited"},
    {"a = 'b''c'", "1:8: key-value pair: expected a comment or whitespace, saw '''"},
    // Numbers
    {"a = 01", "1:7: decimal integer: leading zeroes are prohibited"},
    {"a = +01", "1:8: decimal integer: leading zeroes are prohibited"},
    {"a = -00", "1:8: decimal integer: leading zeroes are prohibited"},
    {"a = 1_", "1:6: key-value pair: expected a comment or whitespace, saw '_'"},
    {"a = _1", "1:5: value: values may not begin with underscores"},
    {"a = 1__2", "1:7: decimal integer: underscores may only follow digits"},
    {"a = 0x", "1:7: hexadecimal integer: encountered end-of-file"},
    {"a = 0xg", "1:7: hexadecimal integer: expected digit, saw 'g'"},
    {"a = 0X1", "1:6: hexadecimal integer: expected 'x', saw 'X'"},
    {"a = +0x1", "1:5: hexadecimal integer: expected '0', saw '+'"},
    {"a = 0o8", "1:7: octal integer: expected digit, saw '8'"},
    {"a = 0b2", "1:7: binary integer: expected digit, saw '2'"},
    {"a = 0b", "1:7: binary integer: encountered end-of-file"},
    {"a = 0x_1", "1:7: hexadecimal integer: expected digit, saw '_'"},
    {"a = 1.", "1:7: floating-point: encountered end-of-file"},
    {"a = .1", "1:5: floating-point: expected decimal digit, saw '.'"},
    {"a = 1.e2", "1:7: floating-point: expected decimal digit, saw 'e'"},
    {"a = 1e", "1:7: floating-point: encountered end-of-file"},
    {"a = 1e+", "1:8: floating-point: encountered end-of-file"},
    {"a = 1e1.5", "1:8: floating-point: expected exponent decimal digit or sign, saw '.'"},
    {"a = 1_.2", "1:7: floating-point: underscores must be followed by digits"},
    {"a = 1._2", "1:7: floating-point: underscores may only follow digits"},
    {"a = 1.2_", "1:9: floating-point: encountered end-of-file"},
    {"a = 1e_2", "1:7: floating-point: underscores may only follow digits"},
    {"a = 03.14", "1:6: floating-point: leading zeroes are prohibited"},
    {"a = --1", "1:6: decimal integer: expected expected digit or sign, saw '-'"},
    {"a = +-1", "1:5: value: could not determine value type"},
    {"a = 1 2", "1:7: key-value pair: expected a comment or whitespace, saw '2'"},
    {"a = 1x", "1:6: decimal integer: expected digit, saw 'x'"},
    {"a = 9223372036854775808", "1:24: decimal integer: '9223372036854775808' is not representable in 64 bits"},
    {"a = -9223372036854775809", "1:25: decimal integer: '9223372036854775809' is not representable in 64 bits"},
    {"a = 0xffffffffffffffff", "1:23: hexadecimal integer: '0xffffffffffffffff' is not representable in 64 bits"},
    {"a = 1e400", "1:10: floating-point: '1e400' could not be interpreted as a value"},
    {"a = inf", "1:5: a number must be finite"},
    {"a = -nan", "1:5: a number must be finite"},
    {"a = Inf", "1:5: floating-point: expected 'inf', saw 'I'"},
    {"a = +", "1:5: value: encountered end-of-file"},
    {"a = 1,000", "1:6: key-value pair: expected a comment or whitespace, saw ','"},
    {"a = 12 # c\n 13", "2:4: key-value pair: encountered end-of-file"},
    {"a = 1.2.3", "1:8: floating-point: expected decimal digit or exponent, saw '.'"},
    {"a = 1f", "1:6: decimal integer: expected digit, saw 'f'"},
    // Words and dates
    {"a = True", "1:5: boolean: expected 'true', saw 'T'"},
    {"a = FALSE", "1:5: boolean: expected 'false', saw 'F'"},
    {"a = tru", "1:8: boolean: encountered end-of-file"},
    {"a = truer", "1:9: boolean: expected value-terminator, saw 'r'"},
    {"a = null", "1:6: floating-point: expected 'nan', saw 'nu'"},
    {"a = none", "1:6: floating-point: expected 'nan', saw 'no'"},
    {"a = 2024-01-01", "1:5: dates and times have no meaning in a model file"},
    {"a = 12:30:00", "1:5: dates and times have no meaning in a model file"},
    {"a = 2024-01-01T12:30:00Z", "1:5: dates and times have no meaning in a model file"},
    {"a = 2024-13-01", "1:12: date: expected month between 1 and 12 (inclusive), saw 13"},
    {"a = 2023-02-29", "1:15: date: expected day between 1 and 28 (inclusive), saw 29"},
    {"a = 2024-1-1", "1:11: date: expected 2-digit month, saw '-'"},
    {"a = 25:00:00", "1:7: time: expected hour between 0 to 59 (inclusive), saw 25"},
    {"a = 12:60:00", "1:10: time: expected minute between 0 and 59 (inclusive), saw 60"},
    {"a = 2024-01-01T", "1:5: value: could not determine value type"},
    {"a = 2024-01-01T12:30:00+25:00", "1:27: date-time offset: expected hour between 0 and 23 (inclusive), saw 25"},
    {"a = falsify", "1:9: boolean: expected 'false', saw 'falsi'"},
    {"a = t", "1:6: boolean: encountered end-of-file"},
    // Arrays
    {"a = [", "1:6: array: encountered end-of-file"},
    {"a = ]", "1:5: key-value pair: expected value, saw ']'"},
    {"a = [1", "1:7: array: encountered end-of-file"},
    {"a = [1,", "1:8: array: encountered end-of-file"},
    {"a = [,]", "1:6: array: expected value or closing ']', saw comma"},
    {"a = [,1]", "1:6: array: expected value or closing ']', saw comma"},
    {"a = [1,,2]", "1:8: array: expected value or closing ']', saw comma"},
    {"a = [1 2]", "1:8: array: expected comma or closing ']', saw '2'"},
    {"a = [1; 2]", "1:7: decimal integer: expected digit, saw ';'"},
    {"a = [1]]", "1:8: key-value pair: expected a comment or whitespace, saw ']'"},
    {"a = [[1]", "1:9: array: encountered end-of-file"},
    {"a = [1}", "1:7: array: expected comma or closing ']', saw '}'"},
    {"a = [b]", "1:6: value: could not determine value type"},
    {"a = [\"b]", "1:9: string: encountered end-of-file"},
    {"a = [b = 1]", "1:6: value: could not determine value type"},
    {"a = [1] 2", "1:9: key-value pair: expected a comment or whitespace, saw '2'"},
    {"a = (1)", "1:5: value: could not determine value type"},
    {"a = [1, # 2]", "1:13: array: encountered end-of-file"},
    // Inline tables
    {"a = {", "1:6: inline table: encountered end-of-file"},
    {"a = }", "1:5: key-value pair: expected value, saw '}'"},
    {"a = { b }", "1:9: key-value pair: expected '=', saw '}'"},
    {"a = { b = }", "1:11: key-value pair: expected value, saw '}'"},
    {"a = { b = 1", "1:12: inline table: encountered end-of-file"},
    {"a = { b = 1,", "1:13: inline table: encountered end-of-file"},
    {"a = { , }", "1:7: inline table: expected key-value pair or closing '}', saw comma"},
    {"a = { b = 1,, c = 2 }", "1:13: inline table: expected key-value pair or closing '}', saw comma"},
    {"a = { b = 1 c = 2 }", "1:13: inline table: expected comma or closing '}', saw 'c'"},
    {"a = { b = 1; c = 2 }", "1:12: decimal integer: expected digit, saw ';'"},
    {"a = { b = 1\n}", "1:12: inline table: expected key or closing '}', saw '\\n'"},
    {"a = { b = 1, b = 2 }", "1:18: key-value pair: cannot redefine existing integer 'b'"},
    {"a = { b = 1, b.c = 2 }", "1:14: key-value pair: cannot redefine existing integer as dotted key-value pair"},
    {"a = { b.c = 1, b = 2 }", "1:20: key-value pair: cannot redefine existing table 'b'"},
    {"a = { b = 1 }}", "1:14: key-value pair: expected a comment or whitespace, saw '}'"},
    {"a = { b = 1 ]", "1:13: inline table: expected key or closing '}', saw ']'"},
    {"a = { \"b = 1 }", "1:15: string: encountered end-of-file"},
    {"a = { 1 }", "1:9: key-value pair: expected '=', saw '}'"},
    {"a = { b = { c = 1 }", "1:20: inline table: encountered end-of-file"},
    {"a = { b = 1 # c }", "1:13: inline table: expected key or closing '}', saw '#'"},
    {"a = { b = 1 } c = 2", "1:15: key-value pair: expected a comment or whitespace, saw 'c'"},
    // Bytes that no document has
    {"a = 1\000"sv, "1:6: decimal integer: expected digit, saw '\\u0000'"},
    {"\000"sv, "1:1: root table: expected keys, tables, whitespace or comments, saw '\\u0000'"},
    {"a = 1 # \001", "1:9: comment: control characters other than TAB (U+0009) are explicitly prohibited in comments"},
    {"# \177", "1:3: comment: control characters other than TAB (U+0009) are explicitly prohibited in comments"},
    {"a = 1\015b = 2", "1:7: key-value pair: expected '\\n' after '\\r', saw 'b'"},
    {"\377\376", "1:1: Encountered invalid utf-8 sequence"},
    {"\303( = 1", "1:1: Encountered invalid utf-8 sequence"},
    {"a = \"\303\"", "1:5: Encountered invalid utf-8 sequence"},
    {"a = \"\342\202\"", "1:5: Encountered invalid utf-8 sequence"},
    {"a = \"\360\237\230\"", "1:5: Encountered invalid utf-8 sequence"},
    {"a = \"\300\257\"", "1:5: Encountered invalid utf-8 sequence"},
    {"a = \"\355\240\200\"", "1:5: Encountered invalid utf-8 sequence"},
    {"a = \"\365\200\200\200\"", "1:5: Encountered invalid utf-8 sequence"},
    {"# \200", "1:2: Encountered invalid utf-8 sequence"},
    {"a = '\370'", "1:5: Encountered invalid utf-8 sequence"},
    {"\303\251 = 1", "1:1: root table: expected keys, tables, whitespace or comments, saw '\303\251'"},
    {"a\001 = 1", "1:2: key-value pair: expected '=', saw '\\u0001'"},
    {"a = \342\200\234b\342\200\235", "1:5: value: could not determine value type"},
    {"a\302\240= 1", "1:2: key: expected space or tab, saw '\\u00A0'"},
    {"\014a = 1", "1:1: root table: vertical tabs '\\v' and form-feeds '\\f' are not legal line breaks in TOML"},
};

TEST(WrongToml, IsRefusedAtItsPlaceWithItsMessage) {
  std::set<std::string_view> seen;
  for (const WrongDocument& wrong : kWrong) {
    SCOPED_TRACE(testing::PrintToString(wrong.text));
    EXPECT_TRUE(seen.insert(wrong.text).second) << "twice";
    const Result<TomlValue> tree = bounded([&] { return parse_toml(wrong.text, "m.toml"); });
    ASSERT_FALSE(tree);
    EXPECT_EQ(tree.error().code, ErrorCode::kInvalidArgument);
    std::string error = tree.error().to_string();
    constexpr std::string_view kFile = "m.toml:", kLibrary = "Error while parsing ";
    ASSERT_TRUE(error.starts_with(kFile)) << error;
    error.erase(0, kFile.size());
    if (const size_t at = error.find(kLibrary); at != std::string::npos) error.erase(at, kLibrary.size());
    EXPECT_TRUE(error.starts_with(wrong.error)) << error << "\nexpected: " << wrong.error;
    EXPECT_LT(error.size(), 300U);
    const Result<ModelSpec> spec = bounded([&] { return parse_spec(std::string(wrong.text), "m.toml"); });
    ASSERT_FALSE(spec);
    EXPECT_EQ(spec.error().to_string(), tree.error().to_string());
  }
  EXPECT_GE(seen.size(), 200U);
}

// The repair of each fault: what must not be refused with them.
TEST(WrongToml, IsNotEverything) {
  for (const std::string_view text :
       {"a = 1\nb = 2"sv, "\"\" = 1"sv, "a.b = 1\na.c = 2"sv, "[a.b]\n[a]\nc = 1"sv, "[[a]]\n[[a]]"sv, "a = \"\"\"\"\"\"\"\""sv,
        "a = \"\"\"b\\\n  c\"\"\""sv, "a = 1_2"sv, "a = 0xFf"sv, "a = -1.5e+3"sv, "a = [1, 2,\n]"sv, "a = { b.c = 1, b.d = 2 }"sv,
        "a = '\303\251' # \303\251"sv, "a = 1\r\nb = 2"sv, ""sv}) {
    const Result<TomlValue> tree = parse_toml(text, "m.toml");
    EXPECT_TRUE(tree) << text << ": " << tree.error().to_string();
  }
}

}  // namespace
}  // namespace glim
