#include "runtime/product_cache.h"

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "models/strict_json.h"
#include "runtime/atomic_file.h"
#include "runtime/mapped_file.h"

namespace glim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Machines = std::map<std::string, AlgorithmChoices>;

constexpr size_t kMaxBytes = size_t{4} << 20;
constexpr size_t kMaxValues = 100'000;
constexpr size_t kMaxText = 512;  // of a product or an algorithm
constexpr int kFormat = 1;

// All or nothing: a file with anything strange in it was not written by write_product_cache.
Machines read(const std::string& path) {
  const Result<MappedFile> file = MappedFile::open(path);
  if (!file || file->bytes().size() > kMaxBytes) return {};
  // A copy: another process may truncate what is mapped, but replaces the file where it is a glim.
  const std::string text(file->text());
  const Result<json> root = parse_strict_json(text, path, kMaxValues);
  if (!root || !root->is_object() || !root->contains("format") || root->at("format") != kFormat || !root->contains("machines")) return {};
  Machines machines;
  if (!root->at("machines").is_object()) return {};
  for (const auto& [machine, entries] : root->at("machines").items()) {
    if (!entries.is_object()) return {};
    for (const auto& [product, algorithm] : entries.items()) {
      if (!algorithm.is_string() || product.size() > kMaxText || algorithm.get_ref<const std::string&>().size() > kMaxText) return {};
      machines[machine].emplace(product, algorithm.get<std::string>());
    }
  }
  return machines;
}

}  // namespace

std::string product_cache_path() {
  const auto absolute = [](const char* variable) {
    const char* const value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe)
    return value != nullptr && value[0] == '/' ? fs::path(value) : fs::path();
  };
  fs::path folder = absolute("XDG_CACHE_HOME");
  if (folder.empty() && !absolute("HOME").empty()) folder = absolute("HOME") / ".cache";
  return folder.empty() ? "" : (folder / "glim" / "products.json").string();
}

AlgorithmChoices read_product_cache(const std::string& path, const std::string& machine) {
  if (path.empty()) return {};
  Machines machines = read(path);
  const auto found = machines.find(machine);
  return found == machines.end() ? AlgorithmChoices{} : std::move(found->second);
}

Status write_product_cache(const std::string& path, const std::string& machine, const AlgorithmChoices& choices) {
  std::error_code error;
  fs::create_directories(parent_folder(path), error);
  if (error) return io_error(parent_folder(path), "cannot create the folder", error.value());
  const auto text_of = [](const Machines& machines) {
    const json root{{"format", kFormat}, {"machines", machines}};
    return root.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
  };
  Machines machines = read(path);
  for (const auto& [product, algorithm] : choices) machines[machine][product] = algorithm;
  std::string text = text_of(machines);
  if (text.size() > kMaxBytes) text = text_of({{machine, choices}});  // the file has grown for years: what is used now stays
  return write_file_atomically(path, text);
}

}  // namespace glim
