#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/parse.h"
#include "engine/print.h"
#include "tests/resource_bounds.h"
#include "tests/toy_ops.h"

namespace glim {
namespace {

// Everything but origins.
void expect_same(const Graph& a, const Graph& b) {
  ASSERT_EQ(a.num_nodes(), b.num_nodes());
  ASSERT_EQ(a.num_values(), b.num_values());
  for (uint32_t n = 0; n < a.num_nodes(); ++n) {
    const NodeId id{n};
    ASSERT_EQ(a.node(id).op, b.node(id).op);
    ASSERT_EQ(a.output(id), b.output(id));
    ASSERT_TRUE(std::ranges::equal(a.inputs(id), b.inputs(id))) << n;
    ASSERT_TRUE(std::ranges::equal(a.attr_words(id), b.attr_words(id))) << n;
  }
  for (uint32_t v = 0; v < a.num_values(); ++v) ASSERT_EQ(a.type({v}), b.type({v}));
  ASSERT_TRUE(std::ranges::equal(a.leaves(), b.leaves(),
                                 [](const Leaf& x, const Leaf& y) { return x.value == y.value && x.kind == y.kind && x.name == y.name; }));
  ASSERT_TRUE(std::ranges::equal(a.outputs(), b.outputs(),
                                 [](const NamedValue& x, const NamedValue& y) { return x.name == y.name && x.value == y.value; }));
  ASSERT_TRUE(std::ranges::equal(a.updates(), b.updates(),
                                 [](const StateUpdate& x, const StateUpdate& y) { return x.state == y.state && x.next == y.next; }));
}

TEST(PrintParse, RandomGraphsComeBackTheSame) {
  std::mt19937_64 random(1);
  for (int k = 0; k < 300; ++k) {
    const Graph graph = toy::random_graph(random, 5 + k % 60);
    for (const bool origins : {false, true}) {
      const std::string text = print(graph, {origins});
      const Result<Graph> back = parse(text, toy::table());
      ASSERT_TRUE(back) << back.error().to_string() << "\n" << text;
      expect_same(graph, *back);
      ASSERT_EQ(print(*back), print(graph));
    }
  }
}

TEST(PrintParse, EveryStatementAsWritten) {
  const std::string text =
      "%0 = input \"x\" : f32[2,3]\n"
      "%1 = parameter \"w\" : f32[4,3]\n"
      "%2 = seed \"s\" : f32[]\n"
      "%3 = gradient \"g\" : f32[2,4]\n"
      "%4 = optimizer \"m\" : bf16[0]\n"
      "%5 = linear(%0, %1, _) : f32[2,4]\n"
      "%6, %7 = sum_difference(%5, %3) : f32[2,4], f32[2,4]\n"
      "%8 = scale(%6) {factor=0.1, offset=-3, negate=true, mode=twice} : f32[2,4]\n"
      "%9 = choose(%8, _, %7) : f32[2,4]\n"
      "output \"loss\" = %9\n"
      "update %3 = %8\n";
  const Result<Graph> graph = parse(text, toy::table());
  ASSERT_TRUE(graph) << graph.error().to_string();
  EXPECT_EQ(print(*graph), text);
}

TEST(PrintParse, OriginsAreComments) {
  Graph graph(toy::table());
  graph.set_origin({graph.intern("decoder.3"), graph.intern("file\n.toml"), 12, 3, true});
  graph.add_leaf(LeafKind::kInput, "x", {DType::kF32, {2}});
  EXPECT_EQ(print(graph, {.origins = true}), "%0 = input \"x\" : f32[2]  // vjp of decoder.3 (file?.toml:12:3)\n");
  EXPECT_EQ(print(graph), "%0 = input \"x\" : f32[2]\n");
}

TEST(PrintParse, FloatsKeepTheirBits) {
  using Limits = std::numeric_limits<double>;
  for (const double value :
       {0.0, -0.0, 0.1, 3.87, 1e-3, 1.0 / 3, Limits::max(), Limits::min(), Limits::denorm_min(), Limits::infinity(), -Limits::infinity(),
        Limits::quiet_NaN(), std::copysign(Limits::quiet_NaN(), -1.0), std::nextafter(1.0, 2.0), 123456789012345678.0}) {
    Graph graph(toy::table());
    const ValueId in[] = {graph.add_leaf(LeafKind::kInput, "x", {DType::kF32, {2}})};
    std::vector<uint32_t> words = default_words(toy::table()[*toy::table().find("scale")].attrs);
    set_real(words, 0, value);
    ASSERT_TRUE(graph.emit(*toy::table().find("scale"), in, std::span<const uint32_t>(words)));
    const Result<Graph> back = parse(print(graph), toy::table());
    ASSERT_TRUE(back) << back.error().to_string() << print(graph);
    EXPECT_TRUE(std::ranges::equal(back->attr_words({1}), words)) << print(graph);
  }
}

TEST(PrintParse, AnyNameComesBack) {
  std::string name;
  for (int byte = 0; byte < 256; ++byte) name += static_cast<char>(byte);
  Graph graph(toy::table());
  graph.add_output(name, graph.add_leaf(LeafKind::kInput, name, {DType::kI64, {}}));
  const Result<Graph> back = parse(print(graph), toy::table());
  ASSERT_TRUE(back) << back.error().to_string();
  expect_same(graph, *back);
}

TEST(PrintParse, FreeNumberingOrderAndBlanks) {
  const Result<Graph> graph = parse(
      "// a comment\r\n\n  %4294967295 =input \"x\":f32[ 2 , 2 ] // another\n"
      "output\t\"y\" = %4294967295\n%7 = scale ( %4294967295 ) { mode = twice , factor = 1e0 }\n\tupdate",
      toy::table());
  ASSERT_FALSE(graph);  // the update lacks its state
  EXPECT_EQ(graph.error().where.line, 6);
  const Result<Graph> good = parse("%9=input \"x\":f32[2,2]\n%7 = scale(%9){mode=twice,factor=1e0,}\n", toy::table());
  EXPECT_FALSE(good);  // no trailing comma
  const Result<Graph> fine = parse("%9=input \"x\":f32[2,2]\n%7 = scale(%9){mode=twice,factor=1e0}", toy::table());
  ASSERT_TRUE(fine) << fine.error().to_string();
  EXPECT_EQ(print(*fine), "%0 = input \"x\" : f32[2,2]\n%1 = scale(%0) {factor=1, mode=twice} : f32[2,2]\n");
}

struct Wrong {
  std::string text, error;
};
std::ostream& operator<<(std::ostream& out, const Wrong& wrong) { return out << wrong.text.substr(0, 60); }
constexpr std::string_view kPrelude = "%0 = input \"x\" : f32[2,3]\n%1 = parameter \"w\" : f32[2,3]\n";  // lines 1 and 2

class ParseErrors : public testing::TestWithParam<Wrong> {};
TEST_P(ParseErrors, NamePlaceAndReason) {
  const std::string text = std::string(kPrelude) + GetParam().text;
  const Result<Graph> graph = bounded([&] { return parse(text, toy::table(), "g.txt"); });
  ASSERT_FALSE(graph) << GetParam().text;
  EXPECT_EQ(graph.error().to_string(), "g.txt:" + GetParam().error);
  EXPECT_EQ(graph.error().code, ErrorCode::kInvalidFile);
}
const std::string kDeep(200000, '(');
std::string repeated(std::string_view text, size_t times) {
  std::string out;
  for (size_t k = 0; k < times; ++k) out += text;
  return out;
}
INSTANTIATE_TEST_SUITE_P(
    All, ParseErrors,
    testing::Values(
        Wrong{"?", "3:1: expected a value such as %0, 'output' or 'update', found '?'"},
        Wrong{"outptu \"a\" = %0", "3:1: expected a value such as %0, 'output' or 'update', found 'outptu'; did you mean 'output'?"},
        Wrong{"\x01", "3:1: expected a value such as %0, 'output' or 'update', found byte 0x01"},
        Wrong{"%x = add(%0, %1)", "3:2: expected the number of a value, found 'x'"},
        Wrong{"% ", "3:3: expected the number of a value, found the end of the line"},
        Wrong{"%99999999999 = add(%0, %1)", "3:2: the number of a value is out of range: 99999999999"},
        Wrong{"%-1 = add(%0, %1)", "3:2: expected the number of a value, found '-1'"},
        Wrong{"%1 = add(%0, %1)", "3:1: %1 is defined already"}, Wrong{"%2, %2 = sum_difference(%0, %1)", "3:5: %2 is defined already"},
        Wrong{"%2 add(%0, %1)", "3:4: expected '=', found 'add'"},
        Wrong{"%2 =", "3:5: expected an op or a kind of leaf, found the end of the line"},
        Wrong{"%2 = add", "3:9: expected '(' after an op or a name after a kind of leaf, found the end of the line"},
        Wrong{"%2 = paramter \"a\" : f32[2]", "3:6: 'paramter' is no kind of leaf; did you mean 'parameter'?"},
        Wrong{"%2, %3 = input \"a\" : f32[2]", "3:10: a leaf is one value"},
        Wrong{"%2 = input \"x\" : f32[2]", "3:12: two leaves are named 'x'"},
        Wrong{"%2 = input \"a : f32[2]", "3:23: the name has no closing '\"'"},
        Wrong{"%2 = input \"a\\n\" : f32[2]", "3:14: an escape in a name is \\\", \\\\ or \\x and two hexadecimal digits"},
        Wrong{"%2 = input \"a\\x1", "3:14: an escape in a name is \\\", \\\\ or \\x and two hexadecimal digits"},
        Wrong{"%2 = input \"a\"", "3:15: expected ':', found the end of the line"},
        Wrong{"%2 = input \"a\" : f33[2]", "3:18: expected a type such as f32[2,3], found 'f33'; did you mean 'f32'?"},
        Wrong{"%2 = input \"a\" : f32", "3:21: expected '[', found the end of the line"},
        Wrong{"%2 = input \"a\" : f32[2", "3:23: expected ']', found the end of the line"},
        Wrong{"%2 = input \"a\" : f32[-2]", "3:18: dimension -2 is negative"},
        Wrong{"%2 = input \"a\" : f32[2147483648]", "3:18: dimension 2147483648 is over the limit of 2147483647"},
        Wrong{"%2 = input \"a\" : f32[2147483647,2147483647]", "3:18: the shape has more elements than any memory can hold"},
        Wrong{"%2 = input \"a\" : f32[1,1,1,1,1,1]", "3:18: rank 5 is over the limit of 4"},
        Wrong{"%2 = input \"a\" : f32[99999999999999999999]", "3:22: a dimension is out of range: 99999999999999999999"},
        Wrong{"%2 = ad(%0, %1)", "3:6: no op is named 'ad'; did you mean 'add'?"}, Wrong{"%2 = leaf()", "3:6: no op is named 'leaf'"},
        Wrong{"%2 = add(%0, %2)", "3:14: %2 is not defined above"}, Wrong{"%2 = add(%0, %7)", "3:14: %7 is not defined above"},
        Wrong{"%2 = add(%0 %1)", "3:13: expected ')', found '%'"}, Wrong{"%2 = add(%0,)", "3:13: expected '%', found ')'"},
        Wrong{"%2 = add(%0)", "3:6: add needs its operand 'other'"}, Wrong{"%2 = add(%0, _)", "3:6: add needs its operand 'other'"},
        Wrong{"%2 = add(%0, %1, %1)", "3:6: add takes 2 operands, not 3"},
        Wrong{"%2, %3 = add(%0, %1)", "3:10: add has 1 outputs here, not 2"},
        Wrong{"%2 = sum_difference(%0, %1)", "3:6: sum_difference has 2 outputs here, not 1"},
        Wrong{"%2 = linear(%0, %1) : f32[2,3]", "3:23: linear gives f32[2,2] here, not f32[2,3]"},
        Wrong{"%2, %3 = sum_difference(%0, %1) : f32[2,3]", "3:43: expected ',', found the end of the line"},
        Wrong{"%2 = scale(%0)", "3:6: scale needs its attribute 'factor'"},
        Wrong{"%2 = scale(%0) {facto=1}", "3:17: scale has no attribute 'facto'; did you mean 'factor'?"},
        Wrong{"%2 = scale(%0) {factor=1, factor=2}", "3:27: attribute 'factor' is given twice"},
        Wrong{"%2 = scale(%0) {factor}", "3:23: expected '=', found '}'"},
        Wrong{"%2 = scale(%0) {factor=one}", "3:24: expected a number, found 'one'"},
        Wrong{"%2 = scale(%0) {factor=1e999}", "3:24: a number is out of range: 1e999"},
        Wrong{"%2 = scale(%0) {factor=1, offset=1.5}", "3:34: expected an integer, found '1.5'"},
        Wrong{"%2 = scale(%0) {factor=1, offset=9223372036854775808}", "3:34: an integer is out of range: 9223372036854775808"},
        Wrong{"%2 = scale(%0) {factor=1, negate=yes}", "3:34: 'negate' is one of false, true, not 'yes'"},
        Wrong{"%2 = scale(%0) {factor=1, mode=twise}", "3:32: 'mode' is one of plain, twice, thrice, not 'twise'; did you mean 'twice'?"},
        Wrong{"%2 = scale(%0) {factor=1", "3:25: expected '}', found the end of the line"},
        Wrong{"%2 = scale(%0) {,}", "3:17: expected the name of an attribute, found ','"},
        Wrong{"%2 = add(%0, %1) : f32[2,3] f32", "3:29: expected the end of the line, found 'f32'"},
        Wrong{"%2 = concat() {axis=0}", "3:6: concat: needs operands of rank 2 and an axis of 0 or 1"},
        Wrong{"%2 = split(%0) {axis=0, size0=9223372036854775807}", "3:6: split: the parts do not fit"},
        Wrong{"output x = %0", "3:8: expected '\"', found 'x'"}, Wrong{"output \"a\" = %5", "3:14: %5 is not defined above"},
        Wrong{"output \"a\" = %0\noutput \"a\" = %1", "4:8: two outputs are named 'a'"},
        Wrong{"update %0 = %1", "3:8: only state can be updated: a parameter, gradient or optimizer leaf"},
        Wrong{"update %1 = %0\nupdate %1 = %0", "4:8: 'w' is updated twice"},
        Wrong{"%2 = linear(%0, %1)\nupdate %1 = %2", "4:13: 'w' is f32[2,3], its update is f32[2,2]"},
        Wrong{"%2 = add" + kDeep, "3:10: expected '%', found '('"},
        Wrong{std::string("%2 = add(%0\0, %1)", 17), "3:12: expected ')', found byte 0x00"},
        Wrong{"%2 = add(%0, %1) \xff", "3:18: expected the end of the line, found byte 0xff"},
        Wrong{"\xef\xbb\xbf%2 = add(%0, %1)", "3:1: expected a value such as %0, 'output' or 'update', found byte 0xef"},
        Wrong{"%2 = " + std::string(1'000'000, 'a') + "(%0)", "3:6: no op is named '" + std::string(60, 'a') + "'"},
        Wrong{"%2 = concat(" + repeated("%0, ", 70'000) + "%0) {axis=0}",
              "3:6: concat: 70001 operands are more than the 65535 that an op can have"},
        Wrong{"%2 = add(%0, %1)\n" + repeated("%2, ", 100'000), "4:1: %2 is defined already"},
        Wrong{repeated("// nothing\n", 100'000) + "?", "100003:1: expected a value such as %0, 'output' or 'update', found '?'"},
        Wrong{"%2 = input \"" + repeated("\\x41", 100'000), "3:400013: the name has no closing '\"'"},
        Wrong{"%2 = scale(%0) {factor=" + std::string(100'000, '1') + "x}", "3:24: a number is out of range: " + std::string(40, '1')},
        Wrong{"%2 = input \"a\" : f32[" + repeated("1,", 100'000) + "1]", "3:18: rank 5 is over the limit of 4"}));

// Every prefix, and thousands of damaged copies, of a good text: an error or a graph, never a crash.
TEST(PrintParse, DamagedTextIsAnErrorOrAGraph) {
  std::mt19937_64 random(7);
  const std::string text = print(toy::random_graph(random, 25), {.origins = true});
  size_t num_errors = 0;
  for (size_t n = 0; n < text.size(); ++n) num_errors += parse(std::string_view(text).substr(0, n), toy::table()) ? 0 : 1;
  EXPECT_GT(num_errors, text.size() / 2);
  for (int k = 0; k < 1000; ++k) {
    std::string damaged = text;
    for (uint64_t hits = 1 + random() % 4; hits > 0; --hits) {
      const size_t at = random() % damaged.size();
      if (random() % 3 == 0)
        damaged.erase(at, random() % 5);
      else if (random() % 2 == 0)
        damaged[at] = static_cast<char>(random());
      else
        damaged.insert(at, std::string(damaged, random() % damaged.size(), random() % 20));
    }
    const Result<Graph> graph = parse(damaged, toy::table());
    EXPECT_TRUE(!graph || parse(print(*graph), toy::table()));
  }
}

}  // namespace
}  // namespace glim
