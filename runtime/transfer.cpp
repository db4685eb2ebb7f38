#include "runtime/transfer.h"

#include <map>

#include "models/build.h"
#include "models/hf_config.h"
#include "runtime/convert.h"
#include "runtime/hf_names.h"
#include "runtime/weights.h"

namespace glim {

Status transfer_checkpoint(const ModelSource& source, const std::string& folder, const TransferOptions& options) {
  if (!source.checkpoint) return invalid_argument("there are no weights: name a folder that holds some, or give --weights");
  const HfFolder& from = *source.checkpoint;
  GLIM_ASSIGN(const std::vector<ModelParameter> parameters, list_parameters(source.spec));
  GLIM_TRY(check_parameters(from, parameters, source.spec.hf.ignore_tensors));
  std::map<std::string, const ModelParameter*, std::less<>> by_hf_name;
  for (const ModelParameter& parameter : parameters) by_hf_name[parameter.hf_name] = &parameter;
  const auto converted = [&](TensorSpec spec) {
    if (options.dtype && by_hf_name.contains(spec.name)) spec.dtype = file_dtype(*options.dtype);
    return spec;
  };
  HfLayout layout = from.layout();
  if (options.dtype || options.max_shard_bytes) {
    std::vector<TensorSpec> specs;
    for (const HfShard& shard : layout.shards) {
      for (const TensorSpec& spec : shard.tensors) specs.push_back(converted(spec));
    }
    const std::vector<std::pair<std::string, std::string>> files = layout.files;
    const uint64_t whole = from.layout().indexed ? 50'000'000'000 : ~uint64_t{0};
    layout = plan_hf_layout(specs, options.max_shard_bytes.value_or(whole));
    layout.files = files;
  }
  if (from.config_json() == nullptr) {
    GLIM_ASSIGN(std::string config, hf_config_from_spec(source.spec, options.dtype.value_or(DType::kF32)));
    layout.files.emplace_back(kConfigName, std::move(config));
  }
  std::vector<std::byte> buffer;
  return write_hf_folder(folder, layout, [&](const TensorSpec& spec) -> Result<std::span<const std::byte>> {
    const FileTensor& tensor = *from.find(spec.name);
    if (tensor.spec.dtype == spec.dtype) return tensor.data;
    GLIM_ASSIGN(buffer, convert_elements(tensor, spec.dtype));
    return std::span<const std::byte>(buffer);
  });
}

}  // namespace glim
