#pragma once
// A Hugging Face config.json chooses a model file by its model_type and fills the names of that file.
#include <string>

#include "engine/dtype.h"
#include "models/spec.h"

namespace glim {

inline constexpr size_t kMaxConfigBytes = size_t{4} << 20, kMaxConfigValues = 200'000;

// `models_dir` holds the model files; the one that says [hf] model_type = "..." itself (not through extends) is taken. Errors name the
// key of config.json, what it holds and what was expected. Duplicate keys are refused.
Result<ModelSpec> spec_from_hf_config(const std::string& config_file, const std::string& models_dir);

// The same with the file's text and a model file that was chosen already.
Result<ModelSpec> fill_from_hf_config(ModelSpec spec, std::string_view json, const std::string& config_file);

// The other way round: a config.json that fill_from_hf_config reads back to the same names. Holds what the model file's [hf] knows, and the
// dtype of the weights.
Result<std::string> hf_config_from_spec(const ModelSpec& spec, DType dtype);

// For a folder of weights: the same, or "" for a model file without [hf] model_type, whose weights have no such configuration.
Result<std::string> checkpoint_config(const ModelSpec& spec, DType dtype);

// Where a config.json says that tokens are bytes, which Hugging Face has no key for.
inline constexpr std::string_view kVocabularyPath = "glim.vocabulary";

}  // namespace glim
