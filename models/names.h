#pragma once
// What the names of a model file stand for: dims, constants, flags, runtime dims and the per-layer values of a stack.
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "models/expression.h"
#include "models/spec.h"

namespace glim {

class Names {
 public:
  // The spec must outlive the object. Runtime dims that are not in the map have no value: using one is an error.
  explicit Names(const ModelSpec& spec, std::map<std::string, int64_t> runtime_dims = {});

  // Evaluates every dim, constant and flag; the first bad one is the error.
  Status check_all();

  // From now on the per-layer names of `stack` have their values of this layer of num_layers; null: there are none.
  void enter_layer(const BlockSpec* stack, int64_t layer, int64_t num_layers);

  Result<Quantity> look_up(std::string_view name, const SourceLocation& where);
  Result<Quantity> quantity(const Scalar& scalar);  // a text may be the name of either kind
  Result<Number> number(const Scalar& scalar);
  Result<bool> condition(const Scalar& scalar);
  Result<int64_t> integer(const Scalar& scalar);
  // An integer in [minimum, kMaxDim]; `what` begins the message.
  Result<int64_t> extent(const Scalar& scalar, int64_t minimum, std::string_view what);

 private:
  struct Entry {
    enum class Kind : uint8_t { kDim, kConstant, kFlag, kRuntimeDim } kind;
    const NamedScalar* definition = nullptr;  // null for a runtime dim
    bool evaluating = false, known = false;
    Quantity value;
  };
  Result<Quantity> evaluate(std::string_view name, Entry& entry, const SourceLocation& where);
  Result<Quantity> layer_value(const PatternSpec& pattern);
  Error unknown(std::string_view name, const SourceLocation& where) const;

  std::map<std::string, Entry, std::less<>> entries_;
  const BlockSpec* stack_ = nullptr;
  int64_t layer_ = 0, num_layers_ = 0;
  int depth_ = 0;
  std::set<std::string, std::less<>> layer_names_;  // of all stacks, for a better message
};

}  // namespace glim
