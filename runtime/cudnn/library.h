#pragma once
// Which cuDNN this process uses, if any. A machine can hold several, and some versions give wrong attention.
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "engine/error.h"

namespace glim {

// What cudnnGetVersion returns: 91900 is 9.19.0.
[[nodiscard]] std::string cudnn_version_text(size_t version);
// Why attention does not use this version; empty where it does.
[[nodiscard]] std::string why_not_cudnn(size_t version);

// The version that file names tell without loading the library: that of the file behind the link libcudnn.so.9, or of the Python wheel
// (nvidia_cudnn_cu13-9.19.0.56.dist-info) that a folder nvidia/cudnn/lib belongs to.
[[nodiscard]] std::optional<size_t> cudnn_version_of_file(const std::string& path);

// Files libcudnn.so.9, best first: `chosen` alone if not empty (a file, or a folder that holds it); otherwise what the dynamic loader
// finds by name, those of Python packages, the CUDA toolkit's and the system's; of these, first what is known to be good.
[[nodiscard]] std::vector<std::string> cudnn_candidates(const std::string& chosen);

struct CudnnLibrary {
  void* handle;  // dlopen's, kept until the process ends
  std::string path;
  size_t version;
};
// Loads the first candidate that can be used; the error says what is wrong with each. A version that its file names tell is judged before
// it is loaded: of two in one process, one would find the other's parts.
[[nodiscard]] Result<CudnnLibrary> load_cudnn(const std::vector<std::string>& candidates);
// load_cudnn of the environment variable GLIM_CUDNN, or of the search, once per process.
[[nodiscard]] const Result<CudnnLibrary>& the_cudnn();

}  // namespace glim
