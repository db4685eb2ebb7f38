// Comparing a checkpoint with what a model expects: check_tensors of runtime/hf_folder.h.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "engine/quote.h"
#include "engine/suggest.h"
#include "runtime/convert.h"
#include "runtime/hf_folder.h"

namespace glim {
namespace {

constexpr size_t kMaxListed = 10;
constexpr size_t kMaxCandidates = 4096;  // each costs the product of two names' lengths

bool can_fill(FileDType from, DType to) {
  if (!is_convertible(from) || from == FileDType::kBool) return false;
  return is_float(from) == is_float(to);
}

// "\n  3 missing: a, b, ... and 1 more"
std::string listed(std::string_view kind, std::span<const std::string> items) {
  if (items.empty()) return "";
  const size_t shown = std::min(items.size(), kMaxListed);
  std::string out = fmt::format("\n  {} {}: {}", items.size(), kind, fmt::join(items.first(shown), ", "));
  if (shown < items.size()) out += fmt::format(", and {} more", items.size() - shown);
  return out;
}

// The names that will be shown get the closest name of the other side.
std::vector<std::string> with_suggestions(std::span<const std::string_view> names, std::span<const std::string_view> others,
                                          std::string_view remark) {
  std::vector<std::string> out;
  for (const std::string_view name : names) {
    out.push_back(quote(name));
    if (out.size() > kMaxListed) continue;  // still counted
    const std::string closest = closest_name(name, others.first(std::min(others.size(), kMaxCandidates)));
    if (!closest.empty()) out.back() += fmt::format(" ({} {})", remark, quote(closest));
  }
  return out;
}

}  // namespace

Status check_tensors(const HfFolder& folder, std::span<const ExpectedTensor> expected, std::span<const std::string> ignored_prefixes) {
  std::vector<std::string_view> missing, unexpected;
  std::vector<std::string> wrong_shape, wrong_dtype;
  std::unordered_map<std::string_view, const ExpectedTensor*> wanted;
  for (const ExpectedTensor& tensor : expected) {
    wanted.emplace(tensor.name, &tensor);
    const FileTensor* found = folder.find(tensor.name);
    if (found == nullptr) {
      missing.push_back(tensor.name);
      continue;
    }
    const Shape& shape = tensor.type.shape;
    if (!std::equal(shape.dims.begin(), shape.dims.begin() + shape.rank, found->spec.shape.begin(), found->spec.shape.end())) {
      wrong_shape.push_back(fmt::format("{} is {}, expected {}", quote(tensor.name), describe(found->spec), to_string(shape)));
    } else if (!can_fill(found->spec.dtype, tensor.type.dtype)) {
      wrong_dtype.push_back(fmt::format("{} is {}, expected {}", quote(tensor.name), to_string(found->spec.dtype),
                                        is_float(tensor.type.dtype) ? "F64, F32, BF16 or F16" : "an integer type"));
    }
  }
  const auto is_ignored = [&](std::string_view name) {
    return std::any_of(ignored_prefixes.begin(), ignored_prefixes.end(),
                       [&](const std::string& prefix) { return name.starts_with(prefix); });
  };
  for (const FileTensor* tensor : folder.tensors()) {
    if (!wanted.contains(tensor->spec.name) && !is_ignored(tensor->spec.name)) unexpected.push_back(tensor->spec.name);
  }
  const std::string problems = listed("missing", with_suggestions(missing, unexpected, "the file has")) +
                               listed("unexpected", with_suggestions(unexpected, missing, "the model wants")) +
                               listed("of the wrong shape", wrong_shape) + listed("of the wrong dtype", wrong_dtype);
  if (problems.empty()) return ok();
  return invalid_file(fmt::format("{}: the tensors do not fit the model:{}", folder.path(), problems));
}

}  // namespace glim
