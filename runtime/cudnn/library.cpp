#include "runtime/cudnn/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>

namespace glim {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFile = "libcudnn.so.9";
// The parts that libcudnn.so.9 loads by name, each after those that it needs.
constexpr std::string_view kParts[] = {"libcudnn_graph.so.9",
                                       "libcudnn_engines_precompiled.so.9",
                                       "libcudnn_engines_runtime_compiled.so.9",
                                       "libcudnn_heuristic.so.9",
                                       "libcudnn_ops.so.9",
                                       "libcudnn_cnn.so.9",
                                       "libcudnn_adv.so.9"};
constexpr size_t kOldest = 90600;  // the first with ragged tensors and grouped heads together

// "9.19.0.56" as 91900.
std::optional<size_t> parse_version(std::string_view text) {
  size_t parts[3] = {}, count = 0;
  for (; count < 3; ++count) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parts[count]);
    if (error != std::errc() || parts[count] > 99) return std::nullopt;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (text.empty() || text.front() != '.') {
      ++count;
      break;
    }
    text.remove_prefix(1);
  }
  if (count < 3) return std::nullopt;
  return parts[0] * 10000 + parts[1] * 100 + parts[2];
}

// Folders that exist and match, in order of their names backwards: of two Pythons, the newer one first.
void add_matching(std::vector<fs::path>& to, const fs::path& folder, std::string_view prefix, const fs::path& below) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().string().starts_with(prefix)) found.push_back(entry->path() / below);
  }
  std::sort(found.rbegin(), found.rend());
  to.insert(to.end(), found.begin(), found.end());
}

std::string last_error() {
  const char* const error = dlerror();
  return error != nullptr ? error : "unknown error";
}

Result<CudnnLibrary> load(const std::string& path) {
  if (const auto version = cudnn_version_of_file(path)) {
    if (const std::string why = why_not_cudnn(*version); !why.empty()) return invalid_argument(why);
  }
  // By full path, so that a library path in the environment does not mix two versions. What is not there is not needed, or will be missed.
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty()) {
    for (const std::string_view part : kParts) dlopen((folder / part).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  dlerror();
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return invalid_argument(last_error());
  link_map* found = nullptr;  // the file, where the loader was given a name; asking the library itself would load its parts
  if (dlinfo(handle, RTLD_DI_LINKMAP, &found) == 0 && found != nullptr) {
    const auto version = cudnn_version_of_file(found->l_name);
    if (const std::string why = version ? why_not_cudnn(*version) : ""; !why.empty()) {
      dlclose(handle);
      return invalid_argument(why);
    }
  }
  const auto get_version = reinterpret_cast<size_t (*)()>(dlsym(handle, "cudnnGetVersion"));
  if (get_version == nullptr) return invalid_argument("it has no cudnnGetVersion");
  const CudnnLibrary library{handle, path, get_version()};
  if (const std::string why = why_not_cudnn(library.version); !why.empty()) return invalid_argument(why);
  return library;
}

}  // namespace

std::string cudnn_version_text(size_t version) { return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100); }

std::string why_not_cudnn(size_t version) {
  const std::string name = cudnn_version_text(version);
  if (version / 10000 != 9) return fmt::format("cuDNN {} is not of version 9", name);
  if (version < kOldest) return fmt::format("cuDNN {} is older than {}", name, cudnn_version_text(kOldest));
  if (version == 91000 || version == 91001) return fmt::format("the backward pass of attention is wrong in cuDNN {}", name);
  if (version == 91400) return fmt::format("attention with a sliding window is wrong in cuDNN {}", name);
  return "";
}

std::optional<size_t> cudnn_version_of_file(const std::string& path) {
  std::error_code error;
  const fs::path file = fs::canonical(path, error);
  if (error) return std::nullopt;
  const std::string name = file.filename().string();
  constexpr std::string_view kPrefix = "libcudnn.so.";
  if (name.starts_with(kPrefix)) {
    if (const auto version = parse_version(std::string_view(name).substr(kPrefix.size()))) return version;
  }
  const fs::path packages = file.parent_path().parent_path().parent_path().parent_path();  // of packages/nvidia/cudnn/lib/FILE
  if (file.parent_path() != packages / "nvidia/cudnn/lib") return std::nullopt;
  for (fs::directory_iterator entry(packages, error), end; !error && entry != end; entry.increment(error)) {
    const std::string folder = entry->path().filename().string();
    const size_t dash = folder.find('-');
    if (!folder.starts_with("nvidia_cudnn_cu13-") || dash == std::string::npos || !folder.ends_with(".dist-info")) continue;
    if (const auto version = parse_version(std::string_view(folder).substr(dash + 1))) return version;
  }
  return std::nullopt;
}

std::vector<std::string> cudnn_candidates(const std::string& chosen) {
  std::error_code error;
  if (!chosen.empty()) return {fs::is_directory(chosen, error) ? (fs::path(chosen) / kFile).string() : chosen};
  constexpr std::string_view kBelow = "nvidia/cudnn/lib";
  std::vector<fs::path> folders;
  if (const char* environment = std::getenv("VIRTUAL_ENV"); environment != nullptr) {
    add_matching(folders, fs::path(environment) / "lib", "python3", fs::path("site-packages") / kBelow);
  }
  // Of the Pythons that can be called: PATH/python3 belongs to PATH/../lib.
  const char* const variable = std::getenv("PATH");
  for (std::string_view rest = variable != nullptr ? variable : ""; !rest.empty();) {
    const size_t length = std::min(rest.find(':'), rest.size());
    const fs::path folder = rest.substr(0, length);
    rest.remove_prefix(std::min(length + 1, rest.size()));
    if (folder.is_absolute() && fs::exists(folder / "python3", error))
      add_matching(folders, folder.parent_path() / "lib", "python3", fs::path("site-packages") / kBelow);
  }
  for (const char* root : {"/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"})
    folders.emplace_back(root);
  for (const char* root : {"/usr/local/lib", "/usr/lib"}) {
    for (const char* packages : {"site-packages", "dist-packages"}) add_matching(folders, root, "python3", fs::path(packages) / kBelow);
  }
  std::vector<std::string> candidates{std::string(kFile)};
  for (const fs::path& folder : folders) {
    const std::string file = (folder / kFile).string();
    const bool is_package = folder.string().ends_with(kBelow);  // one for another CUDA does not tell its version, and stays out
    if (fs::exists(file, error) && (!is_package || cudnn_version_of_file(file))) candidates.push_back(file);
  }
  // What says its version and is good comes before what only loading would tell: a refused one that was loaded stays in the way.
  std::stable_partition(candidates.begin(), candidates.end(), [](const std::string& path) {
    const auto version = cudnn_version_of_file(path);
    return version && why_not_cudnn(*version).empty();
  });
  return candidates;
}

Result<CudnnLibrary> load_cudnn(const std::vector<std::string>& candidates) {
  std::vector<std::string> reasons;
  for (const std::string& path : candidates) {
    Result<CudnnLibrary> library = load(path);
    if (library) return library;
    reasons.push_back(fmt::format("{}: {}", path, library.error().message));
  }
  return invalid_argument(fmt::format("no cuDNN that can be used ({})", fmt::join(reasons, "; ")));
}

const Result<CudnnLibrary>& the_cudnn() {
  static const Result<CudnnLibrary> library = [] {
    const char* const chosen = std::getenv("GLIM_CUDNN");
    return load_cudnn(cudnn_candidates(chosen != nullptr ? chosen : ""));
  }();
  return library;
}

}  // namespace glim
