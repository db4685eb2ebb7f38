#include "models/toml_file.h"

#include <gtest/gtest.h>

#include "models/spec.h"
#include "tests/resource_bounds.h"

namespace glim {
namespace {

std::string error_of(const std::string& text) {
  const Result<TomlValue> tree = parse_toml(text, "m.toml");
  return tree ? "accepted" : tree.error().to_string();
}

TEST(TomlFile, KeepsOrderAndPlaces) {
  const Result<TomlValue> tree = parse_toml("z = 1\na = { q = \"x\", b = [true, 2.5] }\n", "m.toml");
  ASSERT_TRUE(tree) << tree.error().to_string();
  ASSERT_EQ(tree->members.size(), 2U);
  EXPECT_EQ(tree->members[0].key, "z");
  const TomlValue& a = tree->members[1].value;
  EXPECT_EQ(a.members[0].key, "q");
  EXPECT_EQ(a.members[0].value.text, "x");
  EXPECT_EQ(a.members[0].value.where.line, 2);
  EXPECT_EQ(a.members[0].value.where.column, 11);
  EXPECT_EQ(a.members[1].value.items[1].real, 2.5);
}

TEST(TomlFile, RefusesHostileDepthAndSize) {
  std::string key = "a";
  for (int k = 0; k < 200'000; ++k) key += ".a";
  EXPECT_EQ(error_of(key + " = 1\n"), "m.toml:1:32: a key is nested more than 16 deep");
  EXPECT_EQ(error_of("[" + key + "]\n"), "m.toml:1:33: a key is nested more than 16 deep");
  EXPECT_EQ(error_of("x = {" + key + " = 1}\n"), "m.toml:1:37: a key is nested more than 16 deep");
  std::string spaced = "\"a\"";
  for (int k = 0; k < 100'000; ++k) spaced += " . 'a'";
  EXPECT_NE(error_of(spaced + " = 1\n").find("nested more than 16 deep"), std::string::npos);
  EXPECT_EQ(error_of("\n a = " + std::string(200'000, '[')), "m.toml:2:38: arrays and tables are nested more than 32 deep");
  std::string tables = "a = ";
  for (int k = 0; k < 100'000; ++k) tables += "{a=";
  EXPECT_NE(error_of(tables).find("arrays and tables are nested"), std::string::npos);
  // Strings and comments hide nothing behind them and count nothing inside them.
  EXPECT_EQ(error_of("s = \"\"\"\n" + key.substr(0, 99) + "\"\"\" # [[[[\nt = '" + std::string(99, '[') + "'\n"), "accepted");
  EXPECT_NE(error_of("s = \"\\\"\"\n" + key + " = 1\n").find("nested more than 16 deep"), std::string::npos);
  EXPECT_NE(error_of("s = '''x''''\n" + key + " = 1\n").find("nested more than 16 deep"), std::string::npos);
  EXPECT_EQ(error_of(std::string(kMaxTomlBytes + 1, '\n')), "m.toml: the file has 1048577 bytes; a model file has at most 1048576");
  std::string wide;
  for (int k = 0; k < 5000; ++k) wide += "k" + std::to_string(k) + " = 1\n";
  EXPECT_NE(error_of(wide).find("more than 4096 keys"), std::string::npos);
}

// As much of one thing as a file can hold: a megabyte of text must not become hundreds of megabytes of values.
TEST(TomlFile, NoMegabyteOfTextIsExpensive) {
  const auto filled = [](std::string text, std::string_view unit, std::string_view end = "") {
    while (text.size() + unit.size() + end.size() <= kMaxTomlBytes) text += unit;
    return text.append(end);
  };
  const auto numbered = [](std::string_view before, std::string_view after) {
    std::string text;
    for (int k = 0; text.size() + 60 < kMaxTomlBytes; ++k) text.append(before).append(std::to_string(k)).append(after);
    return text;
  };
  const std::string too_many = "the file has more than 100000 values";
  const std::pair<std::string, std::string> table[] = {
      {filled("a = [", "1,", "]\n"), too_many},
      {filled("a = [", "[],", "]\n"), too_many},
      {filled("a = [", "{},", "]\n"), too_many},
      {filled("a = [", "'',", "]\n"), too_many},
      {filled("", "[[a]]\n"), too_many},
      {numbered("[a.b.c.d.e.f.g.h.i.j.k.l.m.n.o", "]\n"), too_many},
      {numbered("x.y.z", " = 1\n"), too_many},
      {numbered("[t", "]\n"), too_many},
      {numbered("k", " = \"some text\"\n").substr(0, 99'990), "m.toml:1:1: a table has more than 4096 keys"},
      {filled("a = \"", "text ", "\"\n"), "m.toml:1:5: a string has more than 4096 bytes"},
      {filled("a = \"", "text ", "\n"), "m.toml:1:"},
      {filled("a = \"\"\"", "\n"), "m.toml:"},
      {filled("", "# comment\n"), "accepted"},
      {filled("a = ", "1"), "m.toml:1:"},
      {filled("a = 0.", "1"), "m.toml:1:"},
      {filled("", "a"), "m.toml:1:"},
      {filled("a = [", "\n# comment\n"), "m.toml:"},
      {filled("a = \"", "\\u0041", "\""), "m.toml:1:5: a string has more than 4096 bytes"},
      {filled("", "k") + " = 1", "m.toml: the file has 10"},
      {filled("", "k", " = 1"), "m.toml:1:1: a key has more than 4096 bytes"},
      {filled("a = 1", " "), "accepted"},
  };
  for (const auto& [text, expected] : table) {
    SCOPED_TRACE(text.substr(0, 40));
    const std::string error = bounded([&input = text] { return error_of(input); });
    EXPECT_NE(error.find(expected), std::string::npos) << error.substr(0, 200);
    EXPECT_LT(error.size(), 1000U);
    (void)bounded([&input = text] { return parse_spec(input, "m.toml") ? 1 : 0; });
  }
  // Just inside the cap.
  std::string most = "a = [";
  for (size_t k = 0; k + 3 < kMaxTomlValues; ++k) most += "1,";
  EXPECT_EQ(bounded([&] { return error_of(most + "]\n"); }), "accepted");
}

TEST(TomlFile, SurvivesDocumentsThatBreakTheParser) {
  for (const char* text : {"a = \"\\u\"", "a = \"\\x1\"", "[", "a = 1__0", "a.b = 1\na = 2", "= 1", "a = 'x", "\xff", "a = \"\"\"\\",
                           "a = 0x", "a = 1979-13-01", "[[a]]\n[a]\n"}) {
    EXPECT_NE(error_of(text), "accepted") << text;
  }
}

// Whether a character outside ASCII is white space was undefined behaviour in the library.
TEST(TomlFile, CharactersOutsideAsciiStandInStringsAndComments) {
  for (const std::string c : {"\xc2\xa1", "\xc3\xa9", "\xd1\x8f", "\xe2\x82\xac", "\xe3\x81\x82", "\xef\xbb\xbe", "\xf0\x9f\x98\x80"}) {
    for (const std::string& text : {c + " = 1", "a = " + c, "a" + c + " = 1", "a =" + c + "1", "a = 1" + c, "[" + c + "]",
                                    "a = [1," + c + "]", "\xef\xbb\xbf" + c, "a = \"\"\"\\" + c + "\"\"\""}) {
      EXPECT_EQ(error_of(text).find("m.toml:1:"), 0U) << text << ": " << error_of(text);
    }
    const Result<TomlValue> tree = parse_toml("# " + c + "\na = \"" + c + "\"\nb = \"\"\"\\\n  " + c + "\"\"\"\n", "m.toml");
    ASSERT_TRUE(tree) << tree.error().to_string();
    EXPECT_EQ(tree->find("a")->value.text, c);
    EXPECT_EQ(tree->find("b")->value.text, c);
  }
}

TEST(TomlFile, MergesTablesAndReplacesTheRest) {
  TomlValue base = *parse_toml("[t]\na = 1\nb = [1, 2]\n[t.u]\nc = 3\n", "base.toml");
  merge_toml(base, *parse_toml("[t]\nb = [9]\nd = 4\n[t.u]\nc = \"x\"\n", "over.toml"));
  const TomlValue& t = base.find("t")->value;
  EXPECT_EQ(t.find("a")->value.integer, 1);
  ASSERT_EQ(t.find("b")->value.items.size(), 1U);
  EXPECT_EQ(t.find("b")->value.where.file, "over.toml");
  EXPECT_EQ(t.find("d")->value.integer, 4);
  EXPECT_EQ(t.find("u")->value.find("c")->value.text, "x");
}

}  // namespace
}  // namespace glim
