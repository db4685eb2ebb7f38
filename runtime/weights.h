#pragma once
// Parameters between a model and Hugging Face checkpoints.
#include "runtime/hf_folder.h"
#include "runtime/model.h"

namespace glim {

// Fills every parameter from the tensor of its HF name, converted to the parameter's dtype, and resets the optimizer. kInvalidFile lists
// what is missing, unexpected, of the wrong shape or dtype. Tensors that match the model's ignore patterns are not needed.
Status load_weights(Model& model, const HfFolder& folder, std::span<const std::string> ignore_patterns);

// Whether the folder holds exactly these parameters (and what the model ignores): see load_weights.
Status check_parameters(const HfFolder& folder, const std::vector<ModelParameter>& parameters,
                        std::span<const std::string> ignore_patterns);

// Writes the parameters (of a model without a checkpoint: its own dtype) as an HF folder with this config.json ("" = without).
Status save_weights(const Model& model, const std::string& folder, const std::string& config_json);

}  // namespace glim
