// A public Batch to the inputs of a program.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "engine/suggest.h"
#include "runtime/api/model_impl.h"
#include "runtime/convert.h"

namespace glim::v0 {
namespace {

glim::Status pack(std::span<const Document> documents, int64_t tokens, int64_t segments, HostValues& values) {
  size_t total = 0;
  for (const Document& document : documents) total += document.tokens.size();
  const auto num_documents = static_cast<int64_t>(documents.size());
  if (static_cast<int64_t>(total) > tokens || num_documents > segments) {
    return invalid_argument(fmt::format("a batch of {} tokens in {} documents, but the model was loaded for {} tokens in {} segments",
                                        total, num_documents, tokens, segments));
  }
  std::vector<int32_t>&ids = values["tokens"], &labels = values["labels"], &lengths = values["row_lengths"];
  for (size_t k = 0; k < documents.size(); ++k) {
    const Document& document = documents[k];
    if (!document.labels.empty() && document.labels.size() != document.tokens.size()) {
      return invalid_argument(fmt::format("document {} has {} tokens and {} labels", k, document.tokens.size(), document.labels.size()));
    }
    const std::vector<int32_t>& given = document.labels.empty() ? document.tokens : document.labels;
    ids.insert(ids.end(), document.tokens.begin(), document.tokens.end());
    labels.insert(labels.end(), given.begin(), given.end());
    lengths.push_back(static_cast<int32_t>(document.tokens.size()));
  }
  return ok();
}

bool is_set_by_host(const ModelInput& input) { return !is_float(input.type.dtype) || input.name != "denominator"; }

}  // namespace

glim::Result<HostValues> ModelImpl::host_values(const Batch& batch, ProgramKind kind) const {
  HostValues values;
  if (!batch.documents.empty()) GLIM_TRY(pack(batch.documents, options_.tokens, options_.segments, values));
  std::set<std::string> known;  // the model's inputs, and what its derived inputs are computed from
  for (const ModelInput& input : model_->compiled().inputs) {
    if (is_float(input.type.dtype)) continue;
    known.insert(input.name);
    for (const DerivedArgument& argument : input.arguments) {
      if (!argument.value.empty()) known.insert(argument.value);
    }
  }
  for (const auto& [name, given] : batch.integers) {
    if (!known.contains(name)) {
      const std::vector<std::string> names(known.begin(), known.end());
      return invalid_argument(fmt::format("the model has no integer input '{}'{}", name, did_you_mean(name, names)));
    }
    values[name] = given;
  }
  const Graph& graph = model_->compiled().find(kind)->graph;
  for (const ModelInput& input : model_->compiled().inputs) {
    const bool is_missing = !is_float(input.type.dtype) && input.derived_from.empty() && !values.contains(input.name);
    if (is_missing && !graph.find_leaf(input.name).valid()) values[input.name] = {};  // only another program reads it
  }
  GLIM_TRY(derive_inputs(model_->compiled().inputs, values));
  return values;
}

std::optional<int64_t> ModelImpl::count_targets(const HostValues& values) const {
  for (const ModelInput& input : model_->compiled().inputs) {
    if (input.derived_from != "targets" && input.name != "targets") continue;
    const std::vector<int32_t>& targets = values.at(input.name);
    const auto ignored = static_cast<int32_t>(input.allow.value_or(-100));
    return static_cast<int64_t>(targets.size()) - std::count(targets.begin(), targets.end(), ignored);
  }
  return std::nullopt;
}

glim::Status ModelImpl::give(const Batch& batch, HostValues values, ProgramKind kind) {
  GLIM_TRY(set_reals(batch, kind));
  return model_->set_inputs(std::move(values));
}

glim::Status ModelImpl::set_reals(const Batch& batch, ProgramKind kind) {
  std::vector<std::string> names;
  const Graph& graph = model_->compiled().find(kind)->graph;
  for (const ModelInput& input : model_->compiled().inputs) {
    if (!is_float(input.type.dtype) || !is_set_by_host(input)) continue;
    names.push_back(input.name);
    const auto found = batch.reals.find(input.name);
    if (found == batch.reals.end()) {
      if (graph.find_leaf(input.name).valid())
        return invalid_argument(fmt::format("input '{}' ({}) was not given", input.name, glim::to_string(input.type)));
      continue;
    }
    if (static_cast<int64_t>(found->second.size()) != input.type.shape.numel()) {
      return invalid_argument(fmt::format("input '{}' has {} elements, but {} needs {}", input.name, found->second.size(),
                                          glim::to_string(input.type), input.type.shape.numel()));
    }
    const std::span<std::byte> to = model_->state_bytes(input.name);
    if (to.empty()) continue;  // no program reads it
    GLIM_TRY(convert_elements(FileDType::kF64, std::as_bytes(std::span(found->second)), file_dtype(input.type.dtype), to, input.name));
  }
  for (const auto& [name, given] : batch.reals) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      return invalid_argument(fmt::format("the model has no real input '{}'{}", name, did_you_mean(name, names)));
  }
  return ok();
}

}  // namespace glim::v0
