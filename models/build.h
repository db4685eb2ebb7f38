#pragma once
// ModelSpec -> forward graph. No model's name is known here.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/graph.h"
#include "models/spec.h"

namespace glim {

inline constexpr size_t kMaxInstances = 1'000'000;

// An argument of a derived input: the name of a host value, or a number.
struct DerivedArgument {
  std::string name;
  std::string value;  // "" when it is a number
  int64_t number = 0;
};

// What the executor validates before a step.
struct ModelInput {
  std::string name;
  ValueId value;
  TensorType type;
  std::optional<std::pair<int64_t, int64_t>> range;  // of an i32 input: lowest and highest
  std::optional<int64_t> allow;                      // one more value, outside the range
  std::vector<int64_t> zeroed;                       // placeholders: the program sees 0 in their place
  bool ascending = false;
  std::string derived_from;  // a function of models/derived.h; "" when the user gives the input
  std::vector<DerivedArgument> arguments;
};

struct ParameterName {
  std::string name;     // "decoder.3.q_proj", "embed.table"
  std::string hf_name;  // "" when the file gives none
};
struct ModelParameter {
  std::string name, hf_name;
  std::string instance;  // "decoder.3", "embed"
  ValueId value;         // its leaf; invalid in list_parameters
  TensorType type;
  InitKind init = InitKind::kConstant;
  double init_value = 0;            // standard deviation, or the constant
  std::vector<ParameterName> tied;  // other names of the same leaf

  [[nodiscard]] const std::string& saved_name() const { return hf_name.empty() ? name : hf_name; }  // of its tensor in files
};

struct BuildOptions {
  DType real = DType::kF32;                     // dtype of "real" inputs and parameters
  std::map<std::string, int64_t> runtime_dims;  // T, G, R, ...: those that the wanted outputs need
  std::vector<std::string> outputs;  // wanted. A per-layer output is asked for as "hidden" or "hidden.3". Empty: all that are not per layer
  std::vector<std::string> optional_inputs;  // optional inputs that shall be there
  size_t max_instances = kMaxInstances;      // parameters, or ops, over all layers; more is an error
};

struct BuiltModel {
  Graph graph;  // leaves: the inputs that the outputs need, then every parameter. Parameters are named
                // and typed alike whatever outputs are wanted, so that programs can share them
  std::vector<ModelInput> inputs;
  std::vector<ModelParameter> parameters;  // in leaf order: by block in the flow, then layer, then the order of the file
  std::map<std::string, int64_t> dims;     // of the file, evaluated
};

// Builds the ops that the wanted outputs depend on. Node origins have the stack instance as path and the op's place in the
// file. Errors stand at the line and column of what is wrong.
Result<BuiltModel> build(const ModelSpec& spec, const OpTable& table, const BuildOptions& options);

// The parameters alone; needs no op table and no runtime dims.
Result<std::vector<ModelParameter>> list_parameters(const ModelSpec& spec, DType real = DType::kF32);
[[nodiscard]] int64_t num_elements(const std::vector<ModelParameter>& parameters);  // "27,854,780,928 parameters"

}  // namespace glim
