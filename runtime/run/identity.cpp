#include "runtime/run/identity.h"

#include <fmt/format.h>

#include "runtime/backend.h"
#include "runtime/device.h"

namespace glim {

Settings run_identity(const TrainingSetup& setup, const CompiledModel& compiled) {
  const TrainConfig& config = setup.config;
  Settings facts{{"train.tokens", fmt::to_string(config.tokens)},
                 {"train.micro_steps", fmt::to_string(config.micro_steps)},
                 {"train.seed", fmt::to_string(config.seed)},
                 {"train.dtype", std::string(to_string(config.dtype))},
                 {"train.master_weights", config.adamw.master_weights ? "true" : "false"},
                 {"data.validation_fraction", fmt::to_string(config.data.validation_fraction)},
                 {"data.overlong", config.data.overlong == Overlong::kDrop ? "drop" : "split"}};
  for (const auto& [name, value] : compiled.dims) facts["model." + name] = fmt::to_string(value);
  facts["the model's graph"] = setup.graph_digest;
  facts["the data"] = setup.data->fingerprint();
  return facts;
}

Settings run_choices(const TrainConfig& config) {
  Settings choices{{"train.steps", fmt::to_string(config.steps)},
                   {"train.learning_rate", fmt::to_string(config.learning_rate)},
                   {"train.final_learning_rate", fmt::to_string(config.final_learning_rate)},
                   {"train.warmup_steps", fmt::to_string(config.warmup_steps)},
                   {"train.beta1", fmt::to_string(config.adamw.beta1)},
                   {"train.beta2", fmt::to_string(config.adamw.beta2)},
                   {"train.eps", fmt::to_string(config.adamw.eps)},
                   {"train.weight_decay", fmt::to_string(config.adamw.weight_decay)},
                   {"train.max_norm", fmt::to_string(config.adamw.max_norm)},
                   {"train.rematerialise", std::string(to_string(config.rematerialise))},
                   {"train.backend", std::string(to_string(config.backend))},
                   {"the library of matrix products", product_library(config.backend)}};
  choices["the library of attention"] = attention_library(config.backend);
  if (config.backend == Backend::kCuda) {
    choices["the GPU"] = cuda_device_name();
    choices["train.strict"] = config.strict ? "true" : "false";
  }
  return choices;
}

}  // namespace glim
