#include "runtime/safetensors.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include "scratch_folder.h"
#include "tests/resource_bounds.h"

namespace glim {
namespace {

namespace fs = std::filesystem;

const std::string kGood =
    R"({"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";

Result<SafetensorsFile> open_text(const ScratchFolder& folder, std::string_view text) {
  write_file(folder / "x.safetensors", text);
  return SafetensorsFile::open(folder / "x.safetensors");
}

struct Malformed {
  std::string header;
  size_t data_bytes;
  std::string message;  // must be part of the error
};

std::string entry(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return R"({"a":{"dtype":")" + std::string(dtype) + R"(","shape":)" + std::string(shape) + R"(,"data_offsets":)" + std::string(offsets) +
         "}}";
}

std::vector<Malformed> malformed() {
  const std::string deep(200'000, '[');
  const std::string many_axes = "[" + [] {
    std::string ones;
    for (int i = 0; i < 65; ++i) ones += i == 0 ? "1" : ",1";
    return ones;
  }() + "]";
  const std::string tensor = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  const auto many_tensors = [] {
    std::string text = "{";
    for (int i = 0; i < 20'000; ++i) text += "\"t" + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)";
    return text + R"("t7":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  };
  return {
      // Text that is no JSON object.
      {"", 0, "does not start with '{'"},
      {" {}", 0, "does not start with '{'"},
      {"[]", 0, "does not start with '{'"},
      {"null", 0, "does not start with '{'"},
      {"\xef\xbb\xbf{}", 0, "does not start with '{'"},
      {deep, 0, "does not start with '{'"},
      {"{", 0, "header: byte"},
      {"{}}", 0, "header: byte"},
      {"{} {}", 0, "header: byte"},
      {"{} x", 0, "header: byte"},
      {"{,}", 0, "header: byte"},
      {"{a:1}", 0, "header: byte"},
      {"{'a':1}", 0, "header: byte"},
      {"{} // comment", 0, "header: byte"},
      {"{\"a\xff\":{}}", 0, "header: byte"},
      {R"({"\ud800":{}})", 0, "header: byte"},
      {std::string("{}\0 {", 5), 0, "NUL byte"},
      {std::string("{}\0", 3), 0, "NUL byte"},
      {R"({"a":)" + deep, 0, "found an array"},
      {R"({"a":{"shape":)" + deep, 0, "found an array"},
      {R"({"a":{"dtype":)" + deep, 0, "found an array"},
      {R"({"a":{"dtype":"F32","shape":[)" + std::string(100'000, '{'), 0, "found an object"},
      // Entries.
      {R"({"a":1})", 0, "tensor 'a': expected an object with dtype, shape and data_offsets, found a number"},
      {R"({"a":null})", 0, "found null"},
      {R"({"a":true})", 0, "found a truth value"},
      {R"({"a":"F32"})", 0, "found a string"},
      {R"({"a":[]})", 0, "found an array"},
      {R"({"a":{}})", 0, "dtype is missing"},
      {R"({"a":{"dtype":"F32"}})", 0, "shape is missing"},
      {R"({"a":{"dtype":"F32","shape":[]}})", 4, "data_offsets is missing"},
      {R"({"a":{"shape":[],"data_offsets":[0,4]}})", 4, "dtype is missing"},
      {R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "shape is missing"},
      {R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4],"extra":1}})", 4, "unknown key 'extra'"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4, "dtype appears twice"},
      {R"({"a":{"dtype":"F32","shape":[],"shape":[],"data_offsets":[0,4]}})", 4, "shape appears twice"},
      {R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4],"data_offsets":[0,4]}})", 4, "data_offsets appears twice"},
      {R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[],"data_offsets":[4,8]}})", 8,
       "tensor 'a' appears twice"},
      {R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0,
       "tensor 'a' appears twice"},
      {R"({"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0,
       "appears twice"},
      {R"({"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0, "empty name"},
      {R"({"a\u0000b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0, "NUL character"},
      {"{" + tensor + ",}", 0, "header: byte"},
      {"{" + tensor + "," + tensor + "," + tensor + "}", 0, "tensor 'a' appears twice"},
      {many_tensors(), 0, "tensor 't7' appears twice"},
      {"{\"" + std::string(1'000'000, 'n') + "\":{}}", 0, "dtype is missing"},
      {"{\"a\xc0\x80\":{}}", 0, "header: byte"},      // an overlong NUL
      {"{\"a\xed\xa0\x80\":{}}", 0, "header: byte"},  // a surrogate
      {"{\"a\xf4\x90\x80\x80\":{}}", 0, "header: byte"},
      {"{\"a\xe2\x82\":{}}", 0, "header: byte"},
      {"{\"a\n\":{}}", 0, "header: byte"},
      {"\xff\xfe{\x01}", 0, "does not start with '{'"},
      {std::string(1'000'000, '{'), 0, "header: byte"},
      {[] {
         std::string nested;
         for (int i = 0; i < 200'000; ++i) nested += "{\"a\":";
         return nested;
       }(),
       0, "unknown key 'a'"},
      // Types.
      {entry("F33", "[]", "[0,4]"), 4, "unknown dtype 'F33'; did you mean"},
      {entry("f32", "[]", "[0,4]"), 4, "unknown dtype 'f32'; did you mean 'F32'?"},
      {entry("", "[]", "[0,4]"), 4, "unknown dtype ''"},
      {R"({"a":{"dtype":5,"shape":[],"data_offsets":[0,4]}})", 4, "expected a string for dtype, found a number"},
      {R"({"a":{"dtype":null,"shape":[],"data_offsets":[0,4]}})", 4, "found null"},
      {entry("F4", "[3]", "[0,2]"), 2, "has no valid size"},
      {entry("F4", "[1]", "[0,1]"), 1, "F4[1] has no valid size"},
      {entry("F6_E2M3", "[3]", "[0,3]"), 3, "F6_E2M3[3] has no valid size"},
      {entry("F6_E3M2", "[4]", "[0,4]"), 4, "F6_E3M2[4] takes 3 bytes"},
      {entry("C64", "[1]", "[0,4]"), 4, "C64[1] takes 8 bytes"},
      {entry("F32 ", "[]", "[0,4]"), 4, "unknown dtype 'F32 '"},
      {entry("F32\\u0000", "[]", "[0,4]"), 4, "unknown dtype 'F32\\x00'"},
      {entry(std::string(100'000, 'F'), "[]", "[0,4]"), 4, "unknown dtype 'FFFF"},
      {R"({"a":{"dtype":["F32"],"shape":[],"data_offsets":[0,4]}})", 4, "expected a string for dtype"},
      // Shapes.
      {entry("F32", "4", "[0,16]"), 16, "found a number"},
      {entry("F32", "null", "[0,16]"), 16, "found null"},
      {entry("F32", "[-1]", "[0,4]"), 4, "found a negative number"},
      {entry("F32", "[-0]", "[0,0]"), 0, "found a negative number"},
      {entry("F32", "[1.0]", "[0,4]"), 4, "found the number 1.0"},
      {entry("F32", "[1e0]", "[0,4]"), 4, "found the number 1e0"},
      {entry("F32", "[\"1\"]", "[0,4]"), 4, "found a string"},
      {entry("F32", "[[1]]", "[0,4]"), 4, "found an array"},
      {entry("F32", "[true]", "[0,4]"), 4, "found a truth value"},
      {entry("F32", "[18446744073709551616]", "[0,4]"), 4, "found the number 18446744073709551616"},
      {entry("F32", "[9223372036854775808]", "[0,4]"), 4, "too large"},
      {entry("F32", "[4294967296,4294967296]", "[0,0]"), 0, "no valid size"},
      {entry("F32", "[4611686018427387904]", "[0,0]"), 0, "no valid size"},
      {entry("U8", "[9223372036854775807,9223372036854775807,0]", "[0,0]"), 0, "no valid size"},
      {entry("F64", "[1000000000000]", "[0,8]"), 8, "takes 8000000000000 bytes"},
      {entry("F32", many_axes, "[0,4]"), 4, "more than 64 axes"},
      {entry("F32", "[2]", "[0,4]"), 4, "F32[2] takes 8 bytes, but data_offsets [0,4] hold 4"},
      {entry("F32", "[0]", "[0,4]"), 4, "takes 0 bytes"},
      {entry("F32", "[01]", "[0,4]"), 4, "header: byte"},
      {entry("F32", "[+1]", "[0,4]"), 4, "header: byte"},
      {entry("F32", "[0x1]", "[0,4]"), 4, "header: byte"},
      {entry("F32", "[1_0]", "[0,40]"), 40, "header: byte"},
      {entry("F32", "[NaN]", "[0,4]"), 4, "header: byte"},
      {entry("F32", "[1,]", "[0,4]"), 4, "header: byte"},
      {entry("F32", "[" + std::string(100'000, '9') + "]", "[0,4]"), 4, "header: byte"},
      {entry("F32", "[0." + std::string(100'000, '9') + "]", "[0,4]"), 4, "found the number 0.999"},
      {entry("F32", "{\"0\":1}", "[0,4]"), 4, "expected an array for shape and data_offsets, found an object"},
      // Offsets.
      {entry("F32", "[1]", "[0]"), 4, "there are 1"},
      {entry("F32", "[1]", "[]"), 4, "there are 0"},
      {entry("F32", "[1]", "[0,4,8]"), 4, "there are more"},
      {entry("F32", "[1]", "4"), 4, "found a number"},
      {entry("F32", "[1]", "{}"), 4, "found an object"},
      {entry("F32", "[1]", "[0,-4]"), 4, "found a negative number"},
      {entry("F32", "[1]", "[0,4.0]"), 4, "found the number 4.0"},
      {entry("F32", "[1]", "[0,1e1]"), 4, "found the number 1e1"},
      {entry("F32", "[1]", "[4,0]"), 4, "end before they begin"},
      {entry("F32", "[1]", "[0,8]"), 4, "go past the end of the data (4 bytes)"},
      {entry("F32", "[1]", "[0,18446744073709551615]"), 4, "go past the end"},
      {entry("F32", "[1]", "[18446744073709551612,18446744073709551615]"), 4, "leave a hole"},
      {entry("F32", "[1]", "[4,8]"), 8, "leave a hole: the tensor before ends at 0"},
      {entry("F32", "[1]", "[0,4]"), 5, "1 bytes after the last tensor"},
      {"{}", 1, "1 bytes after the last tensor"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6,
       "tensor 'b': data_offsets [2,6] overlap"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4, "overlap"},
      {R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[5,6]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 6,
       "tensor 'b': data_offsets [5,6] leave a hole"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})", 4, "overlap"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]},"c":{"dtype":"U8","shape":[2],"data_offsets":[5,7]}})",
       7, "tensor 'c': data_offsets [5,7] leave a hole: the tensor before ends at 4"},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})", 8,
       "tensor 'b': data_offsets [2,4] overlap"},
      // Metadata.
      {R"({"__metadata__":1})", 0, "__metadata__: expected an object of strings, found a number"},
      {R"({"__metadata__":[]})", 0, "found an array"},
      {R"({"__metadata__":null})", 0, "found null"},
      {R"({"__metadata__":{"a":1}})", 0, "__metadata__: expected a string, found a number"},
      {R"({"__metadata__":{"a":{}}})", 0, "found an object"},
      {R"({"__metadata__":{"a":["x"]}})", 0, "found an array"},
      {R"({"__metadata__":{"a":null}})", 0, "found null"},
      {R"({"__metadata__":{"a":"x","a":"y"}})", 0, "the key 'a' appears twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__ appears twice"},
      {R"({"__metadata__":{"a":"x","\u0061":"y"}})", 0, "the key 'a' appears twice"},
      {R"({"__metadata__":"pt"})", 0, "found a string"},
      {R"({"__metadata__":{"dtype":"F32","shape":[],"data_offsets":[0,0]}})", 0, "__metadata__: expected a string, found an array"},
      {R"({"__metadata__":{"a":)" + deep, 0, "__metadata__: expected a string, found an array"},
  };
}

TEST(SafetensorsReader, malformed_headers) {
  const ScratchFolder folder;
  const auto table = malformed();
  ASSERT_GE(table.size(), 120U);
  for (const auto& row : table) {
    write_file(folder / "x.safetensors", safetensors_text(row.header, std::string(row.data_bytes, 'x')));
    const auto file = bounded([&] { return SafetensorsFile::open(folder / "x.safetensors"); });
    ASSERT_FALSE(file) << row.header.substr(0, 200);
    EXPECT_EQ(file.error().code, ErrorCode::kInvalidFile);
    EXPECT_NE(file.error().message.find(row.message), std::string::npos) << file.error().message << "\nfor " << row.header.substr(0, 200);
    EXPECT_EQ(file.error().message.find(folder.path()), 0U);
    EXPECT_LT(file.error().message.size(), 1000U);
  }
}

TEST(SafetensorsReader, malformed_lengths) {
  const ScratchFolder folder;
  const auto with_length = [&](uint64_t length, size_t rest) {
    std::string text = safetensors_text("", std::string(rest, ' '));
    std::memcpy(text.data(), &length, 8);
    return text;
  };
  const std::vector<std::pair<std::string, std::string>> table{{"", "it has 0 bytes"},
                                                               {"1234567", "it has 7 bytes"},
                                                               {with_length(1, 0), "past the end"},
                                                               {with_length(3, 2), "past the end"},
                                                               {with_length(100'000'000, 10), "past the end"},
                                                               {with_length(100'000'001, 10), "over the limit"},
                                                               {with_length(UINT64_MAX, 10), "over the limit"},
                                                               {with_length(UINT64_MAX - 7, 10), "over the limit"},
                                                               {with_length(uint64_t{1} << 63, 10), "over the limit"}};
  for (const auto& [text, message] : table) {
    const auto file = open_text(folder, text);
    ASSERT_FALSE(file);
    EXPECT_NE(file.error().message.find(message), std::string::npos) << file.error().message;
  }
}

TEST(SafetensorsReader, every_truncation_and_one_byte_more_is_an_error) {
  const ScratchFolder folder;
  const std::string good = safetensors_text(kGood, "01234567abc");
  ASSERT_TRUE(open_text(folder, good));
  for (size_t length = 0; length < good.size(); ++length) {
    write_file(folder / "x.safetensors", good.substr(0, length));
    const auto file = bounded([&] { return SafetensorsFile::open(folder / "x.safetensors"); });
    ASSERT_FALSE(file) << length;
    EXPECT_EQ(file.error().code, ErrorCode::kInvalidFile);
    const size_t header_end = good.size() - 11;
    const std::string expected = length < 8            ? "fewer than the 8 of the header length"
                                 : length < header_end ? "goes past the end of the file (" + std::to_string(length) + " bytes)"
                                                       : "go past the end of the data (" + std::to_string(length - header_end) + " bytes)";
    EXPECT_NE(file.error().message.find(expected), std::string::npos) << length << ": " << file.error().message;
  }
  const auto longer = open_text(folder, good + "x");
  ASSERT_FALSE(longer);
  EXPECT_NE(longer.error().message.find("1 bytes after the last tensor"), std::string::npos) << longer.error().message;
}

TEST(SafetensorsReader, any_byte_of_the_header_may_change_without_harm) {
  const ScratchFolder folder;
  const std::string good = safetensors_text(kGood, "01234567abc");
  int accepted = 0;
  for (size_t at = 0; at < 8 + kGood.size(); ++at) {
    for (const char c : {'\0', '"', '}', '9', '\xff'}) {
      std::string text = good;
      text[at] = c;
      const auto file = open_text(folder, text);
      if (!file) continue;
      ++accepted;  // a changed name, say; all tensors still lie inside the file
      size_t bytes = 0;
      for (const auto& tensor : file->tensors()) bytes += tensor.data.size();
      EXPECT_EQ(bytes, 11U);
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(SafetensorsReader, gives_tensors_in_place) {
  const ScratchFolder folder;
  // The entries are not in the order of their bytes; white space and unknown metadata are fine; rank 6; a sub-byte type.
  const std::string header =
      R"({ "__metadata__" : {"z":"1","a":"\u00e9\n"}, "c":{"shape":[1,1,1,1,2,1],"data_offsets":[1,5],"dtype":"BF16"},)"
      "\n"
      R"("s":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},"e":{"dtype":"F64","shape":[3,0],"data_offsets":[1,1]},"t":{"dtype":"I8","shape":[],"data_offsets":[5,6]}}   )";
  const auto opened = open_text(folder, safetensors_text(header, "?0123t"));
  ASSERT_TRUE(opened) << opened.error().to_string();
  const SafetensorsFile& file = *opened;
  ASSERT_EQ(file.tensors().size(), 4U);
  EXPECT_EQ(file.tensors()[0].spec.name, "s");
  EXPECT_EQ(file.tensors()[1].spec.name, "e");
  EXPECT_EQ(file.tensors()[2].spec.name, "c");
  EXPECT_EQ(file.find("c")->spec.shape, (std::vector<int64_t>{1, 1, 1, 1, 2, 1}));
  EXPECT_EQ(describe(file.find("c")->spec), "BF16[1,1,1,1,2,1]");
  EXPECT_EQ(std::memcmp(file.find("c")->data.data(), "0123", 4), 0);
  EXPECT_EQ(file.find("c")->data.size(), 4U);
  EXPECT_EQ(file.find("e")->data.size(), 0U);
  EXPECT_EQ(file.find("t")->data.size(), 1U);
  EXPECT_EQ(file.find("nope"), nullptr);
  EXPECT_EQ(file.metadata(), (FileMetadata{{"z", "1"}, {"a", "\xc3\xa9\n"}}));
}

TEST(SafetensorsReader, moved_file_keeps_its_tensors) {
  const ScratchFolder folder;
  auto opened = open_text(folder, safetensors_text(kGood, "01234567abc"));
  ASSERT_TRUE(opened);
  std::vector<SafetensorsFile> files;
  files.push_back(*std::move(opened));
  files.reserve(100);
  ASSERT_NE(files[0].find("b"), nullptr);
  EXPECT_EQ(std::memcmp(files[0].find("b")->data.data(), "abc", 3), 0);
}

TEST(SafetensorsReader, no_tensors_at_all) {
  const ScratchFolder folder;
  const auto file = open_text(folder, safetensors_text("{}", ""));
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->tensors().empty());
  EXPECT_FALSE(file->metadata());
}

TEST(SafetensorsReader, only_regular_files) {
  const ScratchFolder folder;
  const auto missing = SafetensorsFile::open(folder / "nothing.safetensors");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kIo);
  EXPECT_NE(missing.error().message.find("nothing.safetensors: cannot open: No such file or directory"), std::string::npos)
      << missing.error().message;
  const auto directory = SafetensorsFile::open(folder.path());
  ASSERT_FALSE(directory);
  EXPECT_EQ(directory.error().code, ErrorCode::kInvalidFile);
  EXPECT_NE(directory.error().message.find("this is a folder"), std::string::npos);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const auto pipe = SafetensorsFile::open(folder / "pipe");  // must not wait for a writer
  ASSERT_FALSE(pipe);
  EXPECT_EQ(pipe.error().code, ErrorCode::kInvalidFile);
}

long peak_kilobytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(SafetensorsReader, declared_sizes_take_no_memory) {
  const ScratchFolder folder;
  const long before = peak_kilobytes();
  EXPECT_FALSE(open_text(folder, safetensors_text(entry("F64", "[1099511627776]", "[0,8796093022208]"), "x")));
  EXPECT_FALSE(open_text(folder, safetensors_text(entry("U8", "[9223372036854775807]", "[0,9223372036854775807]"), "x")));
  // A sparse file of 8 GiB is mapped, not read.
  const std::string header = entry("U8", "[8589934592]", "[0,8589934592]");
  write_file(folder / "big.safetensors", safetensors_text(header, ""));
  fs::resize_file(folder / "big.safetensors", 8 + header.size() + 8589934592);
  const auto big = SafetensorsFile::open(folder / "big.safetensors");
  ASSERT_TRUE(big) << big.error().to_string();
  EXPECT_EQ(big->find("a")->data.size(), 8589934592U);
  EXPECT_LT(peak_kilobytes() - before, 64 * 1024);
}

TEST(SafetensorsWriter, golden_files_come_back_byte_for_byte) {
  const ScratchFolder folder;
  int count = 0;
  for (const auto& golden : fs::directory_iterator(GLIM_SOURCE_DIR "/tests/golden")) {
    if (!golden.path().filename().string().starts_with("text_")) continue;
    for (const char* name : {"model.safetensors", "case.safetensors"}) {
      const std::string path = (golden.path() / name).string();
      const auto file = SafetensorsFile::open(path);
      ASSERT_TRUE(file) << file.error().to_string();
      ASSERT_FALSE(file->tensors().empty());
      const auto status = write_safetensors(folder / "again.safetensors", file->tensors(), file->metadata());
      ASSERT_TRUE(status) << status.error().to_string();
      EXPECT_TRUE(read_file(folder / "again.safetensors") == read_file(path)) << path;

      // The order of the reference library is found again from any other.
      std::vector<TensorSpec> specs, sorted;
      for (const auto& tensor : file->tensors()) specs.push_back(tensor.spec);
      sorted.assign(specs.rbegin(), specs.rend());
      sort_as_reference(sorted);
      EXPECT_EQ(sorted, specs) << path;
      ++count;
    }
  }
  EXPECT_EQ(count, 14);  // seven cases
}

TEST(SafetensorsWriter, header_of_the_reference_library) {
  const std::vector<TensorSpec> specs{
      {"a\"\\\n\x01/\xc3\xa9", FileDType::kF32, {2, 3}}, {"s", FileDType::kBool, {}}, {"z", FileDType::kI64, {0}}};
  const auto header = safetensors_header(specs, FileMetadata{{"format", "pt"}, {"k", "v"}});
  ASSERT_TRUE(header);
  const std::string text =
      R"({"__metadata__":{"format":"pt","k":"v"},"a\"\\\n\u0001/)"
      "\xc3\xa9"
      R"(":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("s":{"dtype":"BOOL","shape":[],"data_offsets":[24,25]},"z":{"dtype":"I64","shape":[0],"data_offsets":[25,25]}})";
  const std::string padded = text + std::string((8 - text.size() % 8) % 8, ' ');
  EXPECT_EQ(*header, safetensors_text(padded, ""));
  EXPECT_EQ(*safetensors_header({}, std::nullopt), safetensors_text("{}      ", ""));
  EXPECT_EQ(*safetensors_header({}, FileMetadata{}), safetensors_text(R"({"__metadata__":{}}     )", ""));
}

TEST(SafetensorsWriter, sorts_by_dtype_then_name) {
  std::vector<TensorSpec> specs{{"b", FileDType::kBF16, {}}, {"u", FileDType::kU8, {}},  {"d", FileDType::kF32, {}},
                                {"a", FileDType::kBF16, {}}, {"i", FileDType::kI64, {}}, {"h", FileDType::kF16, {}},
                                {"f", FileDType::kF64, {}},  {"n", FileDType::kI32, {}}};
  sort_as_reference(specs);
  std::string order;
  for (const auto& spec : specs) order += spec.name;
  EXPECT_EQ(order, "ifdnabhu");
}

TEST(SafetensorsWriter, refuses_what_could_not_be_read_back) {
  const auto one = [](std::string name, std::vector<int64_t> shape = {}, FileDType dtype = FileDType::kF32) {
    return !safetensors_header(std::vector<TensorSpec>{{std::move(name), dtype, std::move(shape)}}, std::nullopt);
  };
  EXPECT_FALSE(one("fine"));
  EXPECT_TRUE(one(""));
  EXPECT_TRUE(one("__metadata__"));
  EXPECT_TRUE(one(std::string("a\0b", 3)));
  EXPECT_TRUE(one("\xff"));
  EXPECT_TRUE(one("a", {-1}));
  EXPECT_TRUE(one("a", {int64_t{1} << 40, int64_t{1} << 40}));
  EXPECT_TRUE(one("a", {3}, FileDType::kF4));
  EXPECT_TRUE(one("a", std::vector<int64_t>(65, 1)));
  const TensorSpec spec{"a", FileDType::kU8, {0}};
  EXPECT_FALSE(safetensors_header(std::vector<TensorSpec>{spec, spec}, std::nullopt));
  const TensorSpec huge{"b", FileDType::kU8, {INT64_MAX}}, huge2{"c", FileDType::kU8, {INT64_MAX}}, huge3{"d", FileDType::kU8, {2}};
  EXPECT_FALSE(safetensors_header(std::vector<TensorSpec>{huge, huge2, huge3}, std::nullopt));
  EXPECT_FALSE(safetensors_header({}, FileMetadata{{"k", "1"}, {"k", "2"}}));
}

TEST(SafetensorsWriter, failures_leave_the_old_file) {
  const ScratchFolder folder;
  const std::string path = folder / "w.safetensors";
  write_file(path, "old");
  const std::vector<TensorSpec> specs{{"a", FileDType::kU8, {4}}, {"b", FileDType::kU8, {4}}};
  const std::string bytes = "12345678";
  const auto wrong_size = write_safetensors(path, specs, std::nullopt, [&](const TensorSpec&) -> Result<std::span<const std::byte>> {
    return std::as_bytes(std::span(bytes)).first(5);
  });
  ASSERT_FALSE(wrong_size);
  EXPECT_NE(wrong_size.error().message.find("5 bytes given for the tensor 'a'"), std::string::npos) << wrong_size.error().message;
  const auto failed = write_safetensors(path, specs, std::nullopt, [&](const TensorSpec& spec) -> Result<std::span<const std::byte>> {
    if (spec.name == "b") return Error{ErrorCode::kDevice, "gone"};
    return std::as_bytes(std::span(bytes)).first(4);
  });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "gone");
  EXPECT_EQ(read_folder(folder.path()), (std::map<std::string, std::string>{{"w.safetensors", "old"}}));
}

}  // namespace
}  // namespace glim
