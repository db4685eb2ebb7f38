#include "runtime/hf_batch.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/suggest.h"
#include "models/derived.h"
#include "runtime/convert.h"

namespace glim {
namespace {

// The HF name and the host value that it becomes.
constexpr std::pair<std::string_view, std::string_view> kInputs[] = {
    {"input_ids", "tokens"}, {"labels", "labels"}, {"attention_mask", "attention_mask"}, {"position_ids", "position_ids"}};

Result<std::vector<int32_t>> read_integers(const SafetensorsFile& file, const FileTensor& tensor, const HfBatch& batch) {
  const std::vector<int64_t> shape{batch.num_rows, batch.row_length};
  if (tensor.spec.shape != shape) {
    return invalid_file(fmt::format("'{}' is {}, but input_ids is [{},{}]", tensor.spec.name, describe(tensor.spec), shape[0], shape[1]),
                        {file.path(), 0, 0});
  }
  if (is_float(tensor.spec.dtype))
    return invalid_file(fmt::format("'{}' must hold integers, not {}", tensor.spec.name, describe(tensor.spec)), {file.path(), 0, 0});
  std::vector<int32_t> values(static_cast<size_t>(shape[0] * shape[1]));
  GLIM_TRY(convert_elements(tensor.spec.dtype, tensor.data, FileDType::kI32, std::as_writable_bytes(std::span(values)), tensor.spec.name));
  return values;
}

}  // namespace

Result<HfBatch> read_hf_batch(const SafetensorsFile& file) {
  const auto has_prefix = [](const FileTensor& tensor) { return tensor.spec.name.starts_with("in."); };
  const std::string prefix = std::any_of(file.tensors().begin(), file.tensors().end(), has_prefix) ? "in." : "";
  std::vector<std::string_view> known;
  for (const auto& [hf_name, name] : kInputs) known.push_back(hf_name);
  for (const FileTensor& tensor : file.tensors()) {
    if (!tensor.spec.name.starts_with(prefix)) continue;
    const std::string_view name = std::string_view(tensor.spec.name).substr(prefix.size());
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return invalid_file(fmt::format("this model takes no input '{}'{}", name, did_you_mean(name, known)), {file.path(), 0, 0});
    }
  }
  const FileTensor* ids = file.find(prefix + "input_ids");
  if (ids == nullptr) return invalid_file("there is no input_ids", {file.path(), 0, 0});
  if (ids->spec.shape.size() != 2 || ids->spec.shape[0] < 1 || ids->spec.shape[1] < 1) {
    return invalid_file(fmt::format("input_ids must be [rows, tokens], not {}", describe(ids->spec)), {file.path(), 0, 0});
  }
  HfBatch batch;
  batch.num_rows = ids->spec.shape[0];
  batch.row_length = ids->spec.shape[1];
  if (batch.row_length > INT32_MAX / batch.num_rows) return invalid_file("input_ids has over 2^31 tokens", {file.path(), 0, 0});
  for (const auto& [hf_name, name] : kInputs) {
    const FileTensor* tensor = file.find(prefix + std::string(hf_name));
    if (tensor == nullptr) continue;
    GLIM_ASSIGN(batch.values[std::string(name)], read_integers(file, *tensor, batch));
  }
  batch.has_labels = batch.values.contains("labels");
  if (!batch.has_labels) batch.values["labels"].assign(batch.values["tokens"].size(), -100);
  std::vector<int32_t>& lengths = batch.values["row_lengths"];
  lengths.assign(static_cast<size_t>(batch.num_rows), static_cast<int32_t>(batch.row_length));
  const auto find = [&](std::string_view name) {
    const auto found = batch.values.find(name);
    return found == batch.values.end() ? nullptr : &found->second;
  };
  const std::vector<int32_t>* mask = find("attention_mask");
  GLIM_ASSIGN(std::vector<int32_t> segments,
              segment_table(batch.values["tokens"].size(), &lengths, mask != nullptr ? nullptr : find("position_ids"), mask));
  batch.num_segments = static_cast<int64_t>(segments.size()) - 1;
  batch.values["segments"] = std::move(segments);
  return batch;
}

}  // namespace glim
