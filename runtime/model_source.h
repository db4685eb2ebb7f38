#pragma once
// What a user names as MODEL: a TOML file, a Hugging Face folder or its config.json, a training run's
// folder, or the name of a model that ships with glim.
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "models/spec.h"
#include "runtime/hf_folder.h"

namespace glim {

struct ModelSource {
  ModelSpec spec;
  std::optional<HfFolder> checkpoint;  // the folder's weights, when MODEL is a folder that has some
  std::string config_json;             // path of the config.json that filled the spec; "" for a TOML file
};

// Folder of the model files that ship with glim: $GLIM_MODELS, share/glim/models beside the program or library that this code is in (or
// above it), or the source tree.
[[nodiscard]] std::string models_folder();

// `settings` are "name=value": dims, constants or flags of the file that are set from outside. `weights` is a folder or a .safetensors file
// that overrides the checkpoint of MODEL; "" = none. A head that the checkpoint holds is used even where the configuration ties it.
Result<ModelSource> open_model(const std::string& path, std::span<const std::string> settings, const std::string& weights);

// The same with the text of a TOML file; what it extends is looked for among the shipped models. Errors give it this name.
Result<ModelSource> open_model_text(std::string_view toml, std::span<const std::string> settings, const std::string& weights);
[[nodiscard]] std::string model_text_name();

// Sets one name of the spec. The error names the closest known name.
Status set_value(ModelSpec& spec, const std::string& setting);

}  // namespace glim
