// Which cuDNN is taken: versions, file names, folders. The libraries here are empty files, which no loader takes.
#include "runtime/cudnn/library.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "tests/runtime/scratch_folder.h"

namespace glim {
namespace {

namespace fs = std::filesystem;

void make_library(const std::string& folder, const std::string& version) {
  fs::create_directories(folder);
  write_file(folder + "/libcudnn.so." + version, "");
  if (version != "9") fs::create_symlink("libcudnn.so." + version, folder + "/libcudnn.so.9");
}

TEST(CudnnLibrary, RefusesVersionsWithWrongAttention) {
  for (const size_t version : {91000, 91001, 91400, 90500, 8907, 100000}) EXPECT_NE(why_not_cudnn(version), "") << version;
  for (const size_t version : {90600, 91002, 91401, 91900, 92600}) EXPECT_EQ(why_not_cudnn(version), "") << version;
  EXPECT_EQ(why_not_cudnn(91400), "attention with a sliding window is wrong in cuDNN 9.14.0");
}

TEST(CudnnLibrary, FileNamesTellTheVersion) {
  const ScratchFolder scratch;
  make_library(scratch / "system", "9.14.0");
  EXPECT_EQ(cudnn_version_of_file(scratch / "system/libcudnn.so.9"), 91400);
  make_library(scratch / "packages/nvidia/cudnn/lib", "9");
  EXPECT_EQ(cudnn_version_of_file(scratch / "packages/nvidia/cudnn/lib/libcudnn.so.9"), std::nullopt);
  fs::create_directories(scratch / "packages/nvidia_cudnn_cu13-9.19.0.56.dist-info");
  EXPECT_EQ(cudnn_version_of_file(scratch / "packages/nvidia/cudnn/lib/libcudnn.so.9"), 91900);
  make_library(scratch / "toolkit", "9");
  EXPECT_EQ(cudnn_version_of_file(scratch / "toolkit/libcudnn.so.9"), std::nullopt);
  EXPECT_EQ(cudnn_version_of_file(scratch / "nothing/libcudnn.so.9"), std::nullopt);
}

TEST(CudnnLibrary, AChoiceIsTheOnlyCandidate) {
  const ScratchFolder scratch;
  EXPECT_EQ(cudnn_candidates(scratch.path()), std::vector<std::string>{scratch / "libcudnn.so.9"});
  EXPECT_EQ(cudnn_candidates(scratch / "some.so"), std::vector<std::string>{scratch / "some.so"});
  EXPECT_FALSE(cudnn_candidates("").empty());
}

// A package for this CUDA, of the Python that PATH finds, comes before the loader's choice, which does not say its version.
TEST(CudnnLibrary, SearchFollowsThePythonsOfPath) {
  const ScratchFolder scratch;
  fs::create_directories(scratch / "venv/bin");
  write_file(scratch / "venv/bin/python3", "");
  const std::string packages = scratch / "venv/lib/python3.12/site-packages";
  make_library(packages + "/nvidia/cudnn/lib", "9");
  const char* const variable = std::getenv("PATH");
  const std::string path = variable != nullptr ? variable : "";
  setenv("PATH", (scratch / "none" + ":" + (scratch / "venv/bin")).c_str(), 1);
  fs::create_directories(packages + "/nvidia_cudnn_cu12-9.19.0.56.dist-info");
  const auto for_another_cuda = cudnn_candidates("");
  fs::create_directories(packages + "/nvidia_cudnn_cu13-9.19.0.56.dist-info");
  const auto candidates = cudnn_candidates("");
  setenv("PATH", path.c_str(), 1);
  const std::string file = packages + "/nvidia/cudnn/lib/libcudnn.so.9";
  EXPECT_EQ(std::ranges::count(for_another_cuda, file), 0);
  ASSERT_FALSE(candidates.empty());
  EXPECT_EQ(candidates.front(), file);
}

TEST(CudnnLibrary, ErrorSaysWhatIsWrongWithEach) {
  const ScratchFolder scratch;
  make_library(scratch / "bad", "9.14.0");
  make_library(scratch / "empty", "9.19.0");
  const auto library = load_cudnn({scratch / "bad/libcudnn.so.9", scratch / "empty/libcudnn.so.9", scratch / "none/libcudnn.so.9"});
  ASSERT_FALSE(library);
  const std::string& message = library.error().message;
  for (const std::string_view part :
       {"bad/libcudnn.so.9: attention with a sliding window is wrong in cuDNN 9.14.0", "empty/libcudnn.so.9: ", "none/libcudnn.so.9: "})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

}  // namespace
}  // namespace glim
