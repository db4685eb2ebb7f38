// Data files that are wrong: each gets one clear message, quickly, and without much memory.
#include <sys/stat.h>
#include <time.h>

#include <atomic>

#include "runtime/data/json_lines.h"
#include "runtime/data/packed_file.h"
#include "runtime/data/training_data.h"
#include "tests/runtime/scratch_folder.h"

namespace {
std::atomic<int64_t> allocated_bytes{0};  // ever asked for, freed or not: more than what is held at any time
}  // namespace
#if defined(__SANITIZE_ADDRESS__)
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*, size_t),
                                                         void (*free_hook)(const volatile void*));
namespace {
[[maybe_unused]] const int is_hooked = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, size_t size) { allocated_bytes += static_cast<int64_t>(size); }, [](const volatile void*) {});
}  // namespace
#endif

namespace glim {
namespace {

using namespace std::string_literals;

const Vocabulary kBytes{256, true}, kSmall{10, false};

// Within a second of this thread's time (other processes do not count) and 64 MB.
class Limits {
 public:
  explicit Limits(std::string name) : name_(std::move(name)) {}
  ~Limits() {
    EXPECT_LT(seconds() - start_, 1) << name_;
    EXPECT_LT(allocated_bytes - before_, int64_t{64} << 20) << name_;
  }

 private:
  static double seconds() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  std::string name_;
  double start_ = seconds();
  int64_t before_ = allocated_bytes;
};

struct BadLines {
  std::string content;
  Vocabulary vocabulary;
  std::string message;
};

std::string repeated(const std::string& text, int count) {
  std::string out;
  for (int k = 0; k < count; ++k) out += text;
  return out;
}

const std::string kForms = R"({"text"}, {"prompt", "completion"} or {"input_ids", "labels"})";
const std::string kUnknown = ", expected " + kForms + ", or others that 'ignored_keys' lists";

std::vector<BadLines> bad_lines() {
  const std::string fine = "{\"text\": \"ok\"}\n";
  return {
      // Not JSON.
      {fine + "{\"text\": \"a\"", kBytes, "f:2:13: bad JSON: syntax error while parsing object - unexpected end of input; expected '}'"},
      {"{\"text\": \"a\"} {\"text\": \"b\"}", kBytes,
       "f:1:15: bad JSON: syntax error while parsing value - unexpected '{'; expected end of input"},
      {"{\"text\": \"a\",}", kBytes, "f:1:14: bad JSON: syntax error while parsing object key - unexpected '}'; expected string literal"},
      {"{\"text\": 'a'}", kBytes, "f:1:10: bad JSON: syntax error while parsing value - invalid literal; last read: '\"text\": ''"},
      {"{text: \"a\"}", kBytes,
       "f:1:3: bad JSON: syntax error while parsing object key - invalid literal; last read: '{te'; expected string literal"},
      {"// comment\n", kBytes, "f:1:1: bad JSON: syntax error while parsing value - invalid literal; last read: '/'"},
      {fine + fine + "text\n", kBytes, "f:3:2: bad JSON: syntax error while parsing value - invalid literal; last read: 'te'"},
      {"{\"text\":\n\"a\"}\n", kBytes,
       "f:1:9: bad JSON: syntax error while parsing value - unexpected end of input; expected '[', '{', or a literal"},
      {"{\"text\": \"a\x01\"}", kBytes,
       "f:1:12: bad JSON: syntax error while parsing value - invalid string: control character U+0001 (SOH) must be escaped to \\u0001; "
       "last read: '\"a<U+0001>'"},
      {"{\"text\": \"\xff\"}", kBytes,
       "f:1:11: bad JSON: syntax error while parsing value - invalid string: ill-formed UTF-8 byte; last read: '\"\\xff'"},
      {"{\"text\": \"\xc3\"}", kBytes,
       "f:1:12: bad JSON: syntax error while parsing value - invalid string: ill-formed UTF-8 byte; last read: '\"\\xc3\"'"},
      {"{\"text\": \"\xed\xa0\x80\"}", kBytes,
       "f:1:12: bad JSON: syntax error while parsing value - invalid string: ill-formed UTF-8 byte; last read: '\"\\xed\\xa0'"},
      {"{\"text\": \"\\ud800\"}", kBytes,
       "f:1:17: bad JSON: syntax error while parsing value - invalid string: surrogate U+D800..U+DBFF must be followed by "
       "U+DC00..U+DFFF; last read: '\"\\ud800\"'"},
      {"{\"text\": \"\\q\"}", kBytes,
       "f:1:12: bad JSON: syntax error while parsing value - invalid string: forbidden character after backslash; last read: '\"\\q'"},
      {"{\"input_ids\": [01]}", kSmall, "f:1:17: bad JSON: syntax error while parsing array - unexpected number literal; expected ']'"},
      {"{\"input_ids\": [+1]}", kSmall,
       "f:1:16: bad JSON: syntax error while parsing value - invalid literal; last read: '\"input_ids\": [+'"},
      {"{\"input_ids\": [NaN]}", kSmall,
       "f:1:16: bad JSON: syntax error while parsing value - invalid literal; last read: '\"input_ids\": [N'"},
      {"{\"input_ids\": [1e999]}", kSmall, "f:1:20: bad JSON: number overflow parsing '1e999'"},
      {"\xef\xbb\xbf" + fine, kBytes, "f:1:1: the line begins with a byte-order mark, expected UTF-8 without one"},
      {fine + "{\"text\": \"a\0b\"}"s, kBytes, "f:2:12: a NUL byte"},
      {fine + "{\"text\": \"ab\"}\0{\"text\": \"hidden\"}"s, kBytes, "f:2:15: a NUL byte"},
      // JSON that is no document.
      {"[1, 2]", kBytes, "f:1: the line is an array, expected an object: " + kForms},
      {"\"text\"", kBytes, "f:1: the line is a string, expected an object: " + kForms},
      {"null", kBytes, "f:1: the line is null, expected an object: " + kForms},
      {"17", kBytes, "f:1: the line is a number, expected an object: " + kForms},
      {"{}", kBytes, "f:1: the document is empty, expected " + kForms},
      {"{\"txt\": \"a\"}", kBytes, "f:1: unknown key 'txt'" + kUnknown + "; did you mean 'text'?"},
      {"{\"text\": \"a\", \"id\": 5}", kBytes, "f:1: unknown key 'id'" + kUnknown},
      {"{\"Prompt\": \"a\", \"completion\": \"b\"}", kBytes, "f:1: unknown key 'Prompt'" + kUnknown + "; did you mean 'prompt'?"},
      {"{\"\\u0000\\n\": 1}", kBytes, "f:1: unknown key '\\x00\\x0a'" + kUnknown},
      {"{\"text\": \"a\", \"text\": \"b\"}", kBytes, "f:1: the key 'text' appears twice"},
      {"{\"text\": \"a\", \"t\\u0065xt\": \"b\"}", kBytes, "f:1: the key 'text' appears twice"},
      {"{\"text\": \"a\", \"input_ids\": [1]}", kBytes, "f:1: the document has 'text', 'input_ids', expected " + kForms},
      {"{\"text\": \"a\", \"prompt\": \"b\", \"completion\": \"c\"}", kBytes,
       "f:1: the document has 'text', 'prompt', 'completion', expected " + kForms},
      {"{\"prompt\": \"a\"}", kBytes, "f:1: 'prompt' without 'completion'"},
      {"{\"completion\": \"a\"}", kBytes, "f:1: 'completion' without 'prompt'"},
      {"{\"labels\": [1]}", kSmall, "f:1: 'labels' without 'input_ids'"},
      // Values.
      {"{\"text\": 5}", kBytes, "f:1: 'text' must be a string, not a number"},
      {"{\"text\": -1.5}", kBytes, "f:1: 'text' must be a string, not a number"},
      {"{\"text\": null}", kBytes, "f:1: 'text' must be a string, not null"},
      {"{\"text\": true}", kBytes, "f:1: 'text' must be a string, not a boolean"},
      {"{\"text\": [\"a\"]}", kBytes, "f:1: 'text' must be a string, not an array"},
      {"{\"prompt\": [{\"role\": \"user\"}], \"completion\": \"a\"}", kBytes, "f:1: 'prompt' must be a string, not an array"},
      {"{\"prompt\": \"a\", \"completion\": {\"text\": \"a\"}}", kBytes, "f:1: 'completion' must be a string, not an object"},
      {"{\"input_ids\": \"123\"}", kSmall, "f:1: 'input_ids' must be an array of integers, not a string"},
      {"{\"input_ids\": 5}", kSmall, "f:1: 'input_ids' must be an array of integers, not a number"},
      {"{\"input_ids\": {\"0\": 5}}", kSmall, "f:1: 'input_ids' must be an array of integers, not an object"},
      {"{\"input_ids\": [[1, 2]]}", kSmall, "f:1: 'input_ids'[0] is an array, expected an integer"},
      {"{\"input_ids\": [1, {\"a\": 2}]}", kSmall, "f:1: 'input_ids'[1] is an object, expected an integer"},
      {"{\"input_ids\": [1, \"2\"]}", kSmall, "f:1: 'input_ids'[1] is a string, expected an integer"},
      {"{\"input_ids\": [1, null]}", kSmall, "f:1: 'input_ids'[1] is null, expected an integer"},
      {"{\"input_ids\": [1, 2.0]}", kSmall, "f:1: 'input_ids'[1] is 2.0, expected an integer"},
      {"{\"input_ids\": [1e0]}", kSmall, "f:1: 'input_ids'[0] is 1e0, expected an integer"},
      {"{\"input_ids\": [1, 2, -1]}", kSmall, "f:1: 'input_ids'[2] is -1, expected a token, 0 to 9"},
      {"{\"input_ids\": [-100]}", kSmall, "f:1: 'input_ids'[0] is -100, expected a token, 0 to 9"},
      {"{\"input_ids\": [9]}\n{\"input_ids\": [9, 10]}", kSmall, "f:2: 'input_ids'[1] is 10, expected a token, 0 to 9"},
      {"{\"input_ids\": [4294967296]}", kSmall, "f:1: 'input_ids'[0] is 4294967296, expected a token, 0 to 9"},
      {"{\"input_ids\": [18446744073709551615]}", kSmall, "f:1: 'input_ids'[0] is 18446744073709551615, expected a token, 0 to 9"},
      {"{\"input_ids\": [18446744073709551617]}", kSmall, "f:1: 'input_ids'[0] is 18446744073709551617, expected an integer"},
      {"{\"input_ids\": [-9223372036854775808]}", kSmall, "f:1: 'input_ids'[0] is -9223372036854775808, expected a token, 0 to 9"},
      {"{\"input_ids\": [1, 2], \"labels\": [1]}", kSmall, "f:1: 'labels' has 1 elements and 'input_ids' 2, expected as many"},
      {"{\"labels\": [], \"input_ids\": [1]}", kSmall, "f:1: 'labels' has 0 elements and 'input_ids' 1, expected as many"},
      {"{\"input_ids\": [1, 2], \"labels\": [-100, -99]}", kSmall, "f:1: 'labels'[1] is -99, expected a token, 0 to 9, or -100"},
      {"{\"input_ids\": [1, 2, 3], \"labels\": [2, 3, -100]}", kSmall,
       "f:1: 'labels'[0] is 2, expected -100 or the token there, 1 (labels are not shifted)"},
      {"{\"text\": \"a\"}", kSmall,
       "f:1: 'text' is text, but the model's file does not say [vocabulary] kind = \"bytes\" (token i is byte i)"},
      {"{\"text\": \"a\\u0007z\"}", {100, true}, "f:1: byte 2 of the text is 122, expected a token, 0 to 99"},
      // Much of it.
      {"{\"skip\": " + repeated("[", 100000), kBytes, "f:1: nested deeper than 32 levels"},
      {"{\"skip\": " + repeated("{\"a\":", 100000), kBytes, "f:1: nested deeper than 32 levels"},
      {repeated("[", 100000), kBytes, "f:1: the line is an array, expected an object: " + kForms},
      {"{\"" + repeated("key", 100000) + "\": 1}", kBytes, "f:1: unknown key '" + repeated("key", 66) + "ke...'" + kUnknown},
      {"{\"input_ids\": [" + repeated("1,", 1000000) + "10]}", kSmall, "f:1: 'input_ids'[1000000] is 10, expected a token, 0 to 9"},
      {repeated("\n", 1000000) + "?", kBytes, "f:1000001:1: bad JSON: syntax error while parsing value - invalid literal; last read: '?'"},
  };
}

TEST(MalformedData, JsonLines) {
  const std::vector<std::string> ignored{"skip"};
  for (const BadLines& bad : bad_lines()) {
    const std::string name = bad.content.substr(0, 100);
    const Limits limits(name);
    const Result<TokenBlock> block = read_json_lines(bad.content, "f", bad.vocabulary, ignored);
    ASSERT_FALSE(block) << name;
    EXPECT_EQ(block.error().code, ErrorCode::kInvalidFile);
    EXPECT_EQ(block.error().to_string(), bad.message) << name;
  }
}

// Any line cut off anywhere is an error of that line or a shorter document, never anything else.
TEST(MalformedData, JsonLinesCutOffAnywhere) {
  const std::string content = "{\"prompt\": \"\\u00e9 a\", \"completion\": \"b\"}\n{\"labels\": [-100, 2], \"input_ids\": [1, 2]}\n";
  const size_t end = content.find('\n');
  for (size_t length = 0; length < content.size(); ++length) {
    const Result<TokenBlock> block = read_json_lines(content.substr(0, length), "f", kBytes);
    const bool between = length == 0 || length == end || length == end + 1 || length == content.size() - 1;
    EXPECT_EQ(bool(block), between) << length;
    if (!block) {
      EXPECT_EQ(block.error().where.line, length <= end ? 1 : 2) << length;
    }
  }
}

class PackedData : public testing::Test {
 protected:
  PackedData() {
    const std::string lines =
        "{\"input_ids\":[1,2,3],\"labels\":[-100,2,3]}\n{\"input_ids\":[]}\n{\"input_ids\":[4,5,6,7,8,9,0]}\n{\"input_ids\":[9]}\n";
    write_file(folder_ / "a.jsonl", lines);
    const std::vector<DataFile> files{{folder_ / "a.jsonl", DataFormat::kJsonLines}};
    const Result<Documents> documents = load_documents(files, kSmall, {});
    EXPECT_TRUE(documents && write_packed(*documents, kSmall, folder_ / "good.tokens"));
    good_ = read_file(folder_ / "good.tokens");
  }
  // The error for these bytes; "" when they load.
  std::string message(const std::string& bytes, const Vocabulary& vocabulary = kSmall) {
    const Limits limits("packed");
    write_file(folder_ / "x.tokens", bytes);
    const std::vector<DataFile> files{{folder_ / "x.tokens", DataFormat::kPacked}};
    const Result<Documents> documents = load_documents(files, vocabulary, {});
    if (documents) return "";
    EXPECT_EQ(documents.error().code, ErrorCode::kInvalidFile);
    const std::string text = documents.error().to_string(), prefix = folder_ / "x.tokens: ";
    EXPECT_TRUE(text.starts_with(prefix)) << text;
    return text.substr(std::min(text.size(), prefix.size()));
  }
  // The good file with one value replaced and, unless it is left alone, the header's checksum made right again.
  template <class T>
  std::string with(size_t offset, T value, bool sign = true) {
    std::string bytes = good_;
    std::memcpy(bytes.data() + offset, &value, sizeof value);
    if (sign) {
      Checksum hash;
      hash.add(std::as_bytes(std::span(bytes)).first(offsetof(PackedHeader, header)));
      const Hash128 digest = hash.value();
      std::memcpy(bytes.data() + offsetof(PackedHeader, header), &digest, sizeof digest);
    }
    return bytes;
  }

  ScratchFolder folder_;
  std::string good_;
  static constexpr size_t kStarts = sizeof(PackedHeader), kTokens = kStarts + 5 * 8, kLabels = kTokens + 11;
};

TEST_F(PackedData, EveryFieldIsChecked) {
  ASSERT_EQ(good_.size(), kLabels + 2);
  ASSERT_EQ(message(good_), "");
  const std::string fits = " bytes after the header do not hold ";
  const auto header = [](auto PackedHeader::*field) {
    const PackedHeader sample{};
    return static_cast<size_t>(reinterpret_cast<const char*>(&(sample.*field)) - reinterpret_cast<const char*>(&sample));
  };
  EXPECT_EQ(message(with(0, 'g')), "it does not begin with GLIMTOKS: `glim data pack` did not write it");
  EXPECT_EQ(message(with(header(&PackedHeader::version), uint32_t{2})), "version 2 of the format, this program reads version 1");
  EXPECT_EQ(message(with(header(&PackedHeader::token_bytes), uint32_t{2})), "2 bytes per token, expected 1 for a vocabulary of 10 tokens");
  EXPECT_EQ(message(with(header(&PackedHeader::token_bytes), uint32_t{0})), "0 bytes per token, expected 1 for a vocabulary of 10 tokens");
  const size_t vocabulary = header(&PackedHeader::vocabulary_size), documents = header(&PackedHeader::num_documents),
               tokens = header(&PackedHeader::num_tokens), flags = header(&PackedHeader::flags);
  EXPECT_EQ(message(with(vocabulary, uint64_t{0})), "a vocabulary of 0 tokens, expected 1 to 2^31 - 1");
  EXPECT_EQ(message(with(vocabulary, UINT64_MAX)), "a vocabulary of 18446744073709551615 tokens, expected 1 to 2^31 - 1");
  EXPECT_EQ(message(with(vocabulary, uint64_t{257})), "1 bytes per token, expected 2 for a vocabulary of 257 tokens");
  EXPECT_EQ(message(with(vocabulary, uint64_t{11})), "packed for a vocabulary of 11 tokens, the model has 10");
  EXPECT_EQ(message(with(vocabulary, uint64_t{9})), "token 5 of document 2 is 9, expected 0 to 8");
  const std::string cut = ": the file is cut off or was changed";
  EXPECT_EQ(message(with(documents, uint64_t{5})), "53" + fits + "5 documents and 11 tokens" + cut);
  EXPECT_EQ(message(with(documents, uint64_t{3})), "53" + fits + "3 documents and 11 tokens" + cut);
  EXPECT_EQ(message(with(documents, UINT64_MAX)), "53" + fits + "18446744073709551615 documents and 11 tokens" + cut);
  EXPECT_EQ(message(with(documents, uint64_t{1} << 61)), "53" + fits + "2305843009213693952 documents and 11 tokens" + cut);
  EXPECT_EQ(message(with(tokens, uint64_t{12})), "53" + fits + "4 documents and 12 tokens" + cut);
  EXPECT_EQ(message(with(tokens, uint64_t{10})), "53" + fits + "4 documents and 10 tokens" + cut);
  EXPECT_EQ(message(with(tokens, UINT64_MAX)), "53" + fits + "4 documents and 18446744073709551615 tokens" + cut);
  EXPECT_EQ(message(with(flags, uint64_t{0})), "53" + fits + "4 documents and 11 tokens" + cut);
  EXPECT_EQ(message(with(flags, uint64_t{5})), "unknown flags 0x5");
  EXPECT_EQ(message(with(flags, uint64_t{3})),
            "its tokens are bytes, but the model's file does not say [vocabulary] kind = \"bytes\" (token i is byte i)");
  EXPECT_EQ(message(with(header(&PackedHeader::content), uint64_t{1})), "the documents are damaged: their checksum differs");
  EXPECT_EQ(message(with(header(&PackedHeader::header), uint64_t{1}, false)), "the header is damaged: its checksum differs");
  for (size_t byte = 12; byte < sizeof(PackedHeader); ++byte)
    EXPECT_EQ(message(with(byte, static_cast<char>(good_[byte] ^ 0x10), false)), "the header is damaged: its checksum differs") << byte;
  EXPECT_EQ(message(with(kStarts, uint64_t{1})), "document 0 starts at token 1, expected 0");
  EXPECT_EQ(message(with(kStarts + 8, uint64_t{4})), "document 1 ends before it starts");
  EXPECT_EQ(message(with(kStarts + 16, UINT64_MAX)), "document 2 ends before it starts");
  EXPECT_EQ(message(with(kStarts + 32, uint64_t{12})), "the last document ends at token 12, expected 11");
  EXPECT_EQ(message(with(kStarts + 32, UINT64_MAX)), "the last document ends at token 18446744073709551615, expected 11");
  EXPECT_EQ(message(with(kStarts + 8, uint64_t{2})), "the documents are damaged: their checksum differs");
  EXPECT_EQ(message(with(kTokens, char{10})), "token 0 of document 0 is 10, expected 0 to 9");
  EXPECT_EQ(message(with(kTokens, char{2})), "the documents are damaged: their checksum differs");
  EXPECT_EQ(message(with(kLabels, static_cast<char>(good_[kLabels] ^ 4))), "the documents are damaged: their checksum differs");
  EXPECT_EQ(message(with(kLabels + 1, static_cast<char>(good_[kLabels + 1] | 8))), "bits after the last label are set");
  EXPECT_EQ(message(good_ + '\0'), "54" + fits + "4 documents and 11 tokens" + cut);
  EXPECT_EQ(message(good_, {9, false}), "packed for a vocabulary of 10 tokens, the model has 9");
  EXPECT_EQ(message(good_, {256, true}), "");  // ids are ids
}

TEST_F(PackedData, CutOffAnywhere) {
  for (size_t length = 0; length < good_.size(); ++length) {
    const std::string text = message(good_.substr(0, length));
    if (length < sizeof(PackedHeader))
      EXPECT_EQ(text, std::to_string(length) + " bytes, expected a header of 80: this is no packed file, or it is cut off");
    else
      EXPECT_NE(text.find("the file is cut off or was changed"), std::string::npos) << length << ": " << text;
  }
}

TEST_F(PackedData, NoBitFlipGoesUnnoticed) {
  for (size_t bit = 0; bit < 8 * good_.size(); ++bit) {
    std::string bytes = good_;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    EXPECT_NE(message(bytes), "") << bit;
  }
}

TEST(MalformedData, FilesFoldersAndOptions) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder / "empty");
  std::filesystem::create_directories(folder / "markdown");
  std::filesystem::create_directories(folder / "json");
  write_file(folder / "markdown/a.md", "a");
  write_file(folder / "json/a.jsonl", "{\"text\":\"a\"}");
  write_file(folder / "nothing.txt", "");
  write_file(folder / "blank.jsonl", "\n\n");
  write_file(folder / "one.txt", "abc");
  write_file(folder / "a.csv", "a");
  write_file(folder / "a.json", "[]");
  write_file(folder / "plain", "a");
  write_file(folder / "text.tokens", std::string(100, 'a'));
  write_file(folder / "wide.txt", "a\x80z");
  ASSERT_EQ(::mkfifo((folder / "pipe.txt").c_str(), 0600), 0);
  const auto message = [&](const std::vector<std::string>& files, const Vocabulary& vocabulary = kBytes,
                           const std::vector<std::string>& validation = {}, double fraction = 0) {
    const Limits limits(files.empty() ? "" : files[0]);
    DataConfig config;
    for (const std::string& file : files) config.files.push_back(folder / file);
    for (const std::string& file : validation) config.validation.push_back(folder / file);
    config.validation_fraction = fraction;
    const Result<TrainingData> data = TrainingData::load(config, {.tokens = 4}, vocabulary);
    EXPECT_FALSE(data);
    std::string text = data ? "" : data.error().to_string();
    for (size_t at = 0; (at = text.find(folder.path() + "/", at)) != std::string::npos;) text.erase(at, folder.path().size() + 1);
    return text;
  };
  const std::string known = " is unknown, expected .txt, .jsonl or .tokens",
                    any = "; a file under 'text' is read as text whatever its extension";
  EXPECT_EQ(message({}), "no data file or folder was given");
  EXPECT_EQ(message({"missing.txt"}), "missing.txt: cannot open: No such file or directory");
  EXPECT_EQ(message({"missing.jsonl"}), "missing.jsonl: cannot open: No such file or directory");
  EXPECT_EQ(message({"missing"}), "missing: the extension ''" + known + any);
  EXPECT_EQ(message({"a.csv"}), "a.csv: the extension '.csv'" + known + any);
  EXPECT_EQ(message({"a.json"}), "a.json: the extension '.json'" + known + "; did you mean '.jsonl'?" + any);
  EXPECT_EQ(message({"plain"}), "plain: the extension ''" + known + any);
  EXPECT_EQ(message({"a\0.txt"s}), "the path 'a\\x00.txt' has a NUL byte");
  EXPECT_EQ(message({"empty"}), "empty: this folder has no .txt, .jsonl or .tokens file");
  EXPECT_EQ(message({"markdown"}), "markdown: this folder has no .txt, .jsonl or .tokens file");
  EXPECT_EQ(message({"pipe.txt"}), "pipe.txt: this is a pipe, socket or device, expected a regular file");
  EXPECT_EQ(message({"nothing.txt"}),
            "nothing.txt: no data: of 1 document(s), 1 are empty and 0 longer than 4 tokens, which 'overlong' drops");
  EXPECT_EQ(message({"blank.jsonl"}),
            "blank.jsonl: no data: of 0 document(s), 0 are empty and 0 longer than 4 tokens, which 'overlong' drops");
  EXPECT_EQ(message({"text.tokens"}), "text.tokens: it does not begin with GLIMTOKS: `glim data pack` did not write it");
  EXPECT_EQ(message({"one.txt"}, kSmall),
            "one.txt: text, but the model's file does not say [vocabulary] kind = \"bytes\" (token i is byte i)");
  EXPECT_EQ(message({"wide.txt"}, {128, true}), "wide.txt: token 1 of document 0 is 128, expected 0 to 127");
  EXPECT_EQ(message({"one.txt"}, kBytes, {}, 0.5), "one.txt: there is one piece of data, so none can be held out for validation");
  EXPECT_EQ(message({"one.txt"}, kBytes, {"nothing.txt"}), "nothing.txt: no data to validate on");
  EXPECT_EQ(message({"one.txt"}, kBytes, {"empty"}), "empty: this folder has no .txt, .jsonl or .tokens file");
  DataConfig text;
  text.text = {folder / "json"};
  EXPECT_NE(TrainingData::load(text, {}, kBytes).error().message.find("this folder has no .txt file"), std::string::npos);
}

TEST(MalformedData, Configurations) {
  const auto message = [](const std::string& table) {
    Result<TomlValue> parsed = parse_toml(table, "t");
    EXPECT_TRUE(parsed) << table;
    const Result<DataConfig> config = read_data_config(*parsed, "t");
    return config ? "" : config.error().to_string();
  };
  EXPECT_EQ(message("files = 'a.txt'"), "");
  EXPECT_EQ(message("text = ['a']\nvalidation_fraction = 0.5\noverlong = 'drop'\nignored_keys = ['id']"), "");
  EXPECT_EQ(message("file = ['a']"), "t:1:1: [data] has no key 'file'; did you mean 'files'?");
  EXPECT_EQ(message("overlong = 'drop'"), "t:1:1: 'files' (or 'text') must name at least one file or folder");
  EXPECT_EQ(message("files = [5]"), "t:1:10: 'files' must be a string, not an integer");
  EXPECT_EQ(message("files = ['a']\noverlong = 'spilt'"),
            "t:2:12: 'overlong' must be \"split\" or \"drop\", not \"spilt\"; did you mean 'split'?");
  EXPECT_EQ(message("files = ['a']\nvalidation_fraction = 0.95"), "t:2:23: 'validation_fraction' must be a number from 0 to 0.9");
  EXPECT_EQ(message("files = ['a']\nvalidation = ['b']\nvalidation_fraction = 0.1"),
            "t:3:1: 'validation' names what is held out, so there is no 'validation_fraction'");
}

}  // namespace
}  // namespace glim
