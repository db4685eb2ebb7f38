// Parameters in and out, and their gradients.
#include <fmt/format.h>

#include "engine/suggest.h"
#include "models/hf_config.h"
#include "runtime/api/model_impl.h"
#include "runtime/convert.h"
#include "runtime/weights.h"

namespace glim::v0 {

glim::Result<const ModelParameter*> ModelImpl::find_parameter(std::string_view name) const {
  std::vector<std::string> own, hf;
  for (const ModelParameter& parameter : model_->compiled().parameters) {
    std::vector<ParameterName> names = parameter.tied;
    names.push_back({parameter.name, parameter.hf_name});
    for (const ParameterName& each : names) {
      if (each.name == name || (!each.hf_name.empty() && each.hf_name == name)) return &parameter;
      own.push_back(each.name);
      hf.push_back(each.hf_name);
    }
  }
  own.insert(own.end(), hf.begin(), hf.end());
  return invalid_argument(fmt::format("the model has no parameter '{}'{}", name, did_you_mean(name, own)));
}

glim::Status ModelImpl::initialise(uint64_t seed) {
  ++parameters_version_;
  return model_->initialise(seed);
}

glim::Status ModelImpl::load_weights(const std::string& path) {
  GLIM_ASSIGN(const HfFolder folder, HfFolder::open(path));
  ++parameters_version_;
  return glim::load_weights(*model_, folder, source_.spec.hf.ignore_tensors);
}

glim::Result<Tensor> ModelImpl::parameter(std::string_view name) const {
  GLIM_ASSIGN(const ModelParameter* parameter, find_parameter(name));
  GLIM_ASSIGN(HostTensor value, model_->state(parameter->name));
  return Tensor{to_public(value.type), std::move(value.bytes)};
}

glim::Status ModelImpl::set_parameter(std::string_view name, const Tensor& value) {
  GLIM_ASSIGN(const ModelParameter* parameter, find_parameter(name));
  GLIM_ASSIGN(const glim::TensorType type, to_engine(value.type));
  if (type.shape != parameter->type.shape || !is_float(type.dtype) || value.bytes.size() != type.bytes()) {
    return invalid_argument(fmt::format("parameter '{}' is {}: it cannot be set from {} with {} bytes", name,
                                        glim::to_string(parameter->type), glim::to_string(type), value.bytes.size()));
  }
  std::vector<std::byte> converted(parameter->type.bytes());  // an element that does not fit shall change nothing
  const FileDType dtype = file_dtype(parameter->type.dtype);
  GLIM_TRY(convert_elements(file_dtype(type.dtype), value.bytes, dtype, converted, name));
  GLIM_TRY(model_->set_state(parameter->name, converted));
  ++parameters_version_;
  const std::string master_state = master_name(parameter->name);
  if (!model_->has_state(master_state)) return ok();
  const glim::TensorType wide{accumulation_dtype(parameter->type.dtype), parameter->type.shape};
  std::vector<std::byte> master(wide.bytes());
  GLIM_TRY(convert_elements(dtype, converted, file_dtype(wide.dtype), master, name));
  return model_->set_state(master_state, master);
}

glim::Status ModelImpl::save(const std::string& folder) const {
  for (const ModelParameter& parameter : model_->compiled().parameters) {
    if (parameter.hf_name.empty())
      return invalid_argument(
          fmt::format("parameter '{}' has no checkpoint name: give it one (hf = \"...\") in the model file", parameter.name));
  }
  GLIM_ASSIGN(const std::string config, checkpoint_config(source_.spec, to_engine(options_.dtype)));
  return save_weights(*model_, folder, config);
}

glim::Result<Tensor> ModelImpl::gradient(std::string_view name) const {
  GLIM_ASSIGN(const ModelParameter* parameter, find_parameter(name));
  if (!has_gradients_) return invalid_argument("there are no gradients: no train_step or compute_gradients has succeeded last");
  glim::Result<HostTensor> gradient = model_->state(gradient_name(parameter->name));
  if (!gradient) return invalid_argument(fmt::format("parameter '{}' is not trained, so it has no gradient", name));
  return Tensor{to_public(gradient->type), std::move(gradient->bytes)};
}

}  // namespace glim::v0
