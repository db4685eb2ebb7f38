#pragma once
// The state of a model at one moment, on the host.
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/model.h"
#include "runtime/safetensors.h"

namespace glim {

// A state of the model, and the tensor that holds it in a checkpoint.
struct StateTensor {
  std::string state;  // "adamw.m.decoder.3.q_proj"
  TensorSpec spec;    // {"adamw.m.model.layers.3.self_attn.q_proj.weight", F32, [512, 512]}
};
struct StateTensors {
  std::vector<StateTensor> weights;    // every parameter, by its Hugging Face name (its own name where the model file gives none)
  std::vector<StateTensor> optimizer;  // master weights, moments, step count
};
// kInvalidArgument when no program of the model holds one of the parameters.
[[nodiscard]] Result<StateTensors> list_state(const CompiledModel& model);

// Bytes of all of it: what a snapshot takes in memory, and what a checkpoint's tensors take on the disk.
[[nodiscard]] size_t state_bytes(const CompiledModel& model);

class Snapshot {
 public:
  // Copies all state. The buffer (state_bytes) is allocated by the first call and used again by later ones.
  Status capture(const Model& model);
  [[nodiscard]] std::vector<TensorSpec> weights() const;
  [[nodiscard]] std::vector<TensorSpec> optimizer() const;
  [[nodiscard]] TensorSource source() const;  // by spec.name; used only while this object lives
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  StateTensors tensors_;
  std::unique_ptr<std::byte[]> buffer_;
  size_t bytes_ = 0;
  std::map<std::string, std::span<const std::byte>, std::less<>> places_;  // name of the tensor -> where in the buffer
};

}  // namespace glim
