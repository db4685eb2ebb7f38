#pragma once
// Host functions that compute the inputs that depend on data. Model files name them; they know no model.
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/build.h"

namespace glim {

// Flat int32 values on the host by name, all rows one after another: what the user gave, and what was derived so far.
using HostValues = std::map<std::string, std::vector<int32_t>, std::less<>>;

// The arguments of one call, looked up by the function's own parameter names.
class DerivedCall {
 public:
  DerivedCall(const ModelInput& input, const HostValues& values) : input_(input), values_(values) {}
  // Null when the file does not name one, or when the host value that it names is not there.
  [[nodiscard]] const std::vector<int32_t>* values(std::string_view parameter) const;
  [[nodiscard]] int64_t number(std::string_view parameter, int64_t otherwise) const;
  // Elements that the input must have; longer ones do not fit, shorter ones are padded.
  [[nodiscard]] size_t extent() const { return static_cast<size_t>(input_.type.shape.numel()); }
  [[nodiscard]] const std::string& input_name() const { return input_.name; }

 private:
  const ModelInput& input_;
  const HostValues& values_;
};

struct DerivedParameter {
  std::string_view name;
  bool required = false;  // the file must name it, and the value must be there
  bool is_number = false;
};
struct DerivedFunction {
  std::string_view name, doc;
  std::span<const DerivedParameter> parameters;
  Result<std::vector<int32_t>> (*run)(const DerivedCall&);
};
[[nodiscard]] std::span<const DerivedFunction> derived_functions();
[[nodiscard]] const DerivedFunction* find_derived_function(std::string_view name);

// Where documents begin and end: row lengths (default: all `tokens` are one row) cut further where positions do not go on by one, and
// where the attention mask changes. Returns cumulative [segments + 1], from 0 to the number of tokens. The building block of
// the function "segments"; a caller that chooses a bucket of G counts with it.
Result<std::vector<int32_t>> segment_table(size_t num_tokens, const std::vector<int32_t>* row_lengths,
                                           const std::vector<int32_t>* positions, const std::vector<int32_t>* mask);

// `values` holds what was given without bucket padding: fewer tokens than T are fine here. Computes every derived input that `values` does
// not hold yet, in the order of the model's inputs.
Status derive_inputs(std::span<const ModelInput> inputs, HostValues& values);

// The facts of the file against data: element count, range, order. The error names the input and the first bad position.
Status check_input(const ModelInput& input, std::span<const int32_t> values);

}  // namespace glim
