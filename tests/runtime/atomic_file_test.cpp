#include "runtime/atomic_file.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "runtime/safetensors.h"
#include "scratch_folder.h"

namespace glim {
namespace {

// Lets files grow to `bytes` only: what a full disk does to a writer, without a disk to fill.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    old_handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    struct rlimit limit = old_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    ::signal(SIGXFSZ, old_handler_);
  }

 private:
  struct rlimit old_ {};
  void (*old_handler_)(int) = nullptr;
};

TEST(AtomicFile, replaces_only_at_commit) {
  const ScratchFolder folder;
  const std::string path = folder / "f";
  write_file(path, "old");
  {
    auto file = AtomicFile::create(path);
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->write("new "));
    ASSERT_TRUE(file->write("text"));
    EXPECT_EQ(read_file(path), "old");
    ASSERT_TRUE(file->commit());
    EXPECT_EQ(read_file(path), "new text");
  }
  {
    auto file = AtomicFile::create(path);
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->write("never committed"));
  }
  EXPECT_EQ(read_folder(folder.path()), (std::map<std::string, std::string>{{"f", "new text"}}));
}

TEST(AtomicFile, no_room_leaves_the_old_file) {
  const ScratchFolder folder;
  const std::string path = folder / "model.safetensors";
  write_file(path, "old");
  const std::string bytes(100'000, 'x');
  const std::vector<FileTensor> tensors{{{"a", FileDType::kU8, {100'000}}, std::as_bytes(std::span(bytes))}};
  {
    const FileSizeLimit limit(50'000);
    const auto status = write_safetensors(path, tensors, std::nullopt);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_NE(status.error().message.find(path + ": cannot write: File too large"), std::string::npos) << status.error().message;
  }
  EXPECT_EQ(read_folder(folder.path()), (std::map<std::string, std::string>{{"model.safetensors", "old"}}));
  ASSERT_TRUE(write_safetensors(path, tensors, std::nullopt));
  EXPECT_GT(read_file(path).size(), 100'000U);
}

TEST(AtomicFile, errors_name_the_path) {
  const ScratchFolder folder;
  const auto status = write_file_atomically(folder / "no/such/file", "x");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_NE(status.error().message.find("no/such/file: cannot create: No such file or directory"), std::string::npos)
      << status.error().message;
  std::filesystem::create_directory(folder / "d");
  std::filesystem::create_directory(folder / "d/inner");
  EXPECT_FALSE(write_file_atomically(folder / "d", "x"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(AtomicFile, names) {
  EXPECT_EQ(parent_folder("a"), ".");
  EXPECT_EQ(parent_folder("/a"), "/");
  EXPECT_EQ(parent_folder("a/b"), "a");
  EXPECT_EQ(parent_folder("a/b/"), "a");
  EXPECT_EQ(parent_folder(temporary_sibling("x/y/z/")), "x/y");
  EXPECT_NE(temporary_sibling("x"), temporary_sibling("x"));
  EXPECT_EQ(temporary_sibling("x").front(), '.');
  const ScratchFolder folder;
  EXPECT_TRUE(write_file_atomically(folder / std::string(255, 'n'), "x"));
}

}  // namespace
}  // namespace glim
