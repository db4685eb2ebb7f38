// Hostile checkpoint folders, beyond the table of hf_folder_test.cpp: what links, file kinds and file names can do, and sheer size.
#include <sys/stat.h>

#include "runtime/hf_folder.h"
#include "scratch_folder.h"
#include "tests/resource_bounds.h"

namespace glim {
namespace {

namespace fs = std::filesystem;

const std::string kEmptyTensor = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";

std::string shard(const std::string& tensor) { return safetensors_text("{\"" + tensor + "\":" + kEmptyTensor + "}", ""); }
std::string index_of(const std::string& weight_map) { return "{\"weight_map\":{" + weight_map + "}}"; }

class HostileIndex : public testing::Test {
 protected:
  HostileIndex() {
    fs::create_directory(scratch_ / "m");
    write_file(in_folder("one.safetensors"), shard("a"));
    write_file(scratch_ / "outside.safetensors", shard("b"));
  }
  std::string in_folder(const std::string& name) const { return scratch_ / ("m/" + name); }
  // The folder is refused with a message that has `part`.
  void expect(const std::string& index, const std::string& part, ErrorCode code = ErrorCode::kInvalidFile) {
    write_file(in_folder("model.safetensors.index.json"), index);
    expect_refused(part, code);
  }
  void expect_refused(const std::string& part, ErrorCode code = ErrorCode::kInvalidFile) {
    const Result<HfFolder> folder = bounded([&] { return HfFolder::open(scratch_ / "m"); });
    ASSERT_FALSE(folder) << part;
    EXPECT_EQ(folder.error().code, code) << folder.error().message;
    EXPECT_NE(folder.error().message.find(part), std::string::npos) << folder.error().message;
    EXPECT_LT(folder.error().message.size(), 1200U);
  }
  ScratchFolder scratch_;
};

TEST_F(HostileIndex, GoodOne) {
  write_file(in_folder("model.safetensors.index.json"), index_of(R"("a":"one.safetensors")"));
  EXPECT_TRUE(HfFolder::open(scratch_ / "m"));
}

TEST_F(HostileIndex, ShardsThatAreLinks) {
  const std::string good = R"("a":"one.safetensors",)";
  fs::create_symlink(scratch_ / "outside.safetensors", in_folder("absolute.safetensors"));
  expect(index_of(good + R"("b":"absolute.safetensors")"), "absolute.safetensors: this link leads out of its folder");
  fs::create_symlink("nowhere", in_folder("dangling.safetensors"));
  expect(index_of(good + R"("b":"dangling.safetensors")"), "dangling.safetensors: cannot open: No such file", ErrorCode::kIo);
  fs::create_symlink("loop.safetensors", in_folder("loop.safetensors"));
  expect(index_of(good + R"("b":"loop.safetensors")"), "loop.safetensors: cannot open: Too many levels", ErrorCode::kIo);
  fs::create_symlink("/dev/zero", in_folder("zero.safetensors"));
  expect(index_of(good + R"("b":"zero.safetensors")"), "leads out of its folder, to /dev/zero");
  fs::create_directory_symlink("..", in_folder("up.safetensors"));
  expect(index_of(good + R"("b":"up.safetensors")"), "leads out of its folder");
  fs::create_symlink("one.safetensors", in_folder("same.safetensors"));
  expect(index_of(good + R"("b":"same.safetensors")"), "the tensor 'b' is not in same.safetensors");
  expect(index_of(R"("a":"same.safetensors","b":"one.safetensors")"), "the tensor 'b' is not in one.safetensors");
}

TEST_F(HostileIndex, ShardsThatAreNoFiles) {
  ASSERT_EQ(::mkfifo(in_folder("pipe.safetensors").c_str(), 0600), 0);
  expect(index_of(R"("a":"pipe.safetensors")"), "pipe.safetensors: this is a pipe, socket or device");
  fs::create_directory(in_folder("folder.safetensors"));
  expect(index_of(R"("a":"folder.safetensors")"), "folder.safetensors: this is a folder");
  write_file(in_folder("empty.safetensors"), "");
  expect(index_of(R"("a":"empty.safetensors")"), "it has 0 bytes");
}

TEST_F(HostileIndex, FileNames) {
  expect(index_of(R"("a":"One.safetensors")"), "One.safetensors: cannot open: No such file", ErrorCode::kIo);  // case counts
  expect(index_of(R"("a":"one.safetensors ")"), "expected the plain name of a .safetensors file");
  expect(index_of(R"("a":"one.safetensors/")"), "expected the plain name");
  expect(index_of(R"("a":"one.SAFETENSORS")"), "expected the plain name");
  expect(index_of(R"("a":"..%2foutside.safetensors")"), "cannot open: No such file", ErrorCode::kIo);
  expect(index_of(R"("a":"file:///etc/one.safetensors")"), "expected the plain name");
  expect(index_of(R"("a":"C:\\one.safetensors")"), "expected the plain name");
  expect(index_of(R"("a":"\u202eone.safetensors")"), "cannot open: No such file", ErrorCode::kIo);
  expect(index_of(R"("a":".safetensors")"), "cannot open: No such file", ErrorCode::kIo);
  expect(index_of("\"a\":\"" + std::string(1'000'000, 'x') + ".safetensors\""), "expected the plain name");
}

TEST_F(HostileIndex, TensorNames) {
  expect(index_of(R"("":"one.safetensors")"), "the tensor '' is not in one.safetensors");
  expect(index_of(R"("a\u0000":"one.safetensors","a":"one.safetensors")"), "the tensor 'a\\x00' is not in one.safetensors");
  expect(index_of("\"a\":\"one.safetensors\",\"" + std::string(1'000'000, 'y') + "\":\"one.safetensors\""), "is not in one.safetensors");
}

TEST_F(HostileIndex, Size) {
  std::string many = R"("a":"one.safetensors")";
  for (int k = 0; k < 20'000; ++k) many += ",\"t" + std::to_string(k) + "\":\"one.safetensors\"";
  expect(index_of(many), "the tensor 't0' is not in one.safetensors");
  std::string arrays = "[";
  for (int k = 0; k < 1'000'000; ++k) arrays += "[],";
  expect("{\"metadata\":{\"total_size\":" + arrays + "1]}}", "it has more than 1000000 values");
  expect("{\"metadata\":{\"x\":" + std::string(1'000'000, '['), "nested deeper than 32 levels");
  std::string objects;
  for (int k = 0; k < 200'000; ++k) objects += "{\"weight_map\":";
  expect(objects, "nested deeper than 32 levels");
  expect("{\"weight_map\":{\"a\":" + std::string(1'000'000, '9') + "}}", "bad JSON: byte ");
}

TEST_F(HostileIndex, TheIndexItself) {
  const std::string path = in_folder("model.safetensors.index.json");
  fs::create_directory(path);
  expect_refused("model.safetensors.index.json: this is a folder");
  fs::remove(path);
  write_file(scratch_ / "secret.json", index_of(R"("a":"one.safetensors")"));
  fs::create_symlink("../secret.json", path);
  expect_refused("leads out of its folder");
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  expect_refused("this is a pipe, socket or device");
  fs::remove(path);
  // Mapped, not read: 8 GiB of zeros.
  write_file(path, "{");
  fs::resize_file(path, uint64_t{8} << 30);
  expect_refused("over the limit of 100000000");
  fs::remove(path);
  write_file(in_folder("model.safetensors"), shard("a"));
  write_file(in_folder("config.json"), "{");
  fs::resize_file(in_folder("config.json"), uint64_t{8} << 30);
  expect_refused("config.json: 8589934592 bytes, over the limit of 4194304");
}

TEST(ResourceBounds, AreMeasured) {
  if (!HeapMeter::install()) GTEST_SKIP() << "memory is measured only with AddressSanitizer";
  const Usage usage = measure([] {
    const std::vector<char> block(size_t{65} << 20, 'x');
    EXPECT_EQ(block.back(), 'x');
  });
  EXPECT_GE(usage.peak_bytes, kMaxAdditionalBytes);
  EXPECT_LT(usage.peak_bytes, kMaxAdditionalBytes + (int64_t{2} << 20));
  volatile double sink = 0;
  const Usage busy = measure([&] {
    for (int k = 0; k < 20'000'000; ++k) sink = sink + 1;
  });
  EXPECT_GT(busy.seconds, 0.01);
}

}  // namespace
}  // namespace glim
