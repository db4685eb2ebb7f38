#include "runtime/weights.h"

#include <map>

#include "runtime/convert.h"
#include "runtime/hf_names.h"

namespace glim {
namespace {

// "model.vision_tower.*" -> "model.vision_tower."
std::vector<std::string> prefixes_of(std::span<const std::string> patterns) {
  std::vector<std::string> prefixes;
  for (const std::string& pattern : patterns) prefixes.push_back(pattern.substr(0, pattern.find('*')));
  return prefixes;
}

}  // namespace

Status check_parameters(const HfFolder& folder, const std::vector<ModelParameter>& parameters,
                        std::span<const std::string> ignore_patterns) {
  std::vector<ExpectedTensor> expected;
  for (const ModelParameter& parameter : parameters) expected.push_back({parameter.hf_name, parameter.type});
  return check_tensors(folder, expected, prefixes_of(ignore_patterns));
}

Status load_weights(Model& model, const HfFolder& folder, std::span<const std::string> ignore_patterns) {
  GLIM_TRY(check_parameters(folder, model.compiled().parameters, ignore_patterns));
  for (const ModelParameter& parameter : model.compiled().parameters) {
    if (!model.has_state(parameter.name)) continue;
    std::vector<std::byte> bytes(parameter.type.bytes());
    const FileTensor& tensor = *folder.find(parameter.hf_name);
    GLIM_TRY(convert_elements(tensor.spec.dtype, tensor.data, file_dtype(parameter.type.dtype), bytes, parameter.hf_name));
    GLIM_TRY(model.set_state(parameter.name, bytes));
  }
  return model.reset_optimizer();
}

Status save_weights(const Model& model, const std::string& folder, const std::string& config_json) {
  std::vector<TensorSpec> specs;
  std::map<std::string, std::string> name_of;
  for (const ModelParameter& parameter : model.compiled().parameters) {
    specs.push_back(tensor_spec(parameter.saved_name(), parameter.type));
    name_of[parameter.saved_name()] = parameter.name;
  }
  HfLayout layout = plan_hf_layout(specs);
  if (!config_json.empty()) layout.files.emplace_back(kConfigName, config_json);
  HostTensor tensor;
  return write_hf_folder(folder, layout, [&](const TensorSpec& spec) -> Result<std::span<const std::byte>> {
    GLIM_ASSIGN(tensor, model.state(name_of.at(spec.name)));
    return std::span<const std::byte>(tensor.bytes);
  });
}

}  // namespace glim
