#pragma once
// The parameters of every instance of every block, and their names.
#include <map>
#include <string>
#include <vector>

#include "models/build.h"
#include "models/names.h"

namespace glim {

struct ParameterTable {
  static constexpr size_t kAbsent = ~size_t{0};  // declared, but its `when` does not hold
  std::vector<ModelParameter> parameters;
  std::vector<SourceLocation> places;                // of the declarations
  std::map<std::string, size_t, std::less<>> index;  // every name, tied ones too, -> parameters
};
Result<ParameterTable> expand_parameters(const ModelSpec& spec, Names& names, DType real, size_t max_instances = kMaxInstances);

// Layers of a stack (1 to kMaxLayers); 1 for a block.
Result<int64_t> num_instances(const BlockSpec& block, Names& names);
// "decoder.3", or "embed" for a block.
[[nodiscard]] std::string instance_name(const BlockSpec& block, int64_t layer);
// At most kMaxRank extents, each at least `minimum`, of which the product is a size that can exist.
Result<TensorType> evaluate_type(const std::vector<Scalar>& shape, SpecDType dtype, DType real, int64_t minimum,
                                 const SourceLocation& where, Names& names);

}  // namespace glim
