#include "models/derived.h"

#include <fmt/format.h>

#include <algorithm>

namespace glim {
namespace {

using Values = std::vector<int32_t>;

Error wrong_length(std::string_view what, size_t have, size_t want) {
  return invalid_argument(fmt::format("{} has {} elements, not {}", what, have, want));
}

Result<Values> segments(const DerivedCall& call) {
  const Values* tokens = call.values("tokens");
  GLIM_ASSIGN(Values table, segment_table(tokens->size(), call.values("row_lengths"), call.values("positions"), call.values("mask")));
  if (table.size() > call.extent()) {
    return invalid_argument(
        fmt::format("'{}' holds {} segments, but the data has {}", call.input_name(), call.extent() - 1, table.size() - 1));
  }
  table.resize(call.extent(), table.back());  // empty segments
  return table;
}

// The given ones, or counted from the start of each segment. Tokens behind the last segment are padding: 0.
Result<Values> positions(const DerivedCall& call) {
  const Values& table = *call.values("segments");
  Values out(call.extent(), 0);
  if (const Values* given = call.values("given")) {
    if (given->size() > out.size()) return wrong_length("positions", given->size(), out.size());
    std::copy(given->begin(), given->end(), out.begin());
    return out;
  }
  for (size_t g = 0; g + 1 < table.size(); ++g) {
    for (int32_t i = table[g]; i < table[g + 1]; ++i) out[static_cast<size_t>(i)] = i - table[g];
  }
  return out;
}

// target[i] = labels[i + 1] inside a segment. The last token of a segment has no target; a padding token neither has nor is one.
Result<Values> targets(const DerivedCall& call) {
  const Values& labels = *call.values("labels");
  const Values& table = *call.values("segments");
  const Values* mask = call.values("mask");
  const auto ignored = static_cast<int32_t>(call.number("ignore_index", -100));
  Values out(call.extent(), ignored);
  if (labels.size() > out.size()) return wrong_length("labels", labels.size(), out.size());
  if (mask != nullptr && mask->size() != labels.size()) return wrong_length("the attention mask", mask->size(), labels.size());
  if (static_cast<size_t>(table.back()) != labels.size()) return wrong_length("labels", labels.size(), static_cast<size_t>(table.back()));
  for (size_t g = 0; g + 1 < table.size(); ++g) {
    for (auto i = static_cast<size_t>(table[g]); i + 1 < static_cast<size_t>(table[g + 1]); ++i) {
      if (mask == nullptr || ((*mask)[i] != 0 && (*mask)[i + 1] != 0)) out[i] = labels[i + 1];
    }
  }
  return out;
}

// How many targets count.
Result<Values> count_valid(const DerivedCall& call) {
  const Values& values = *call.values("values");
  const auto ignored = static_cast<int32_t>(call.number("ignore_index", -100));
  if (call.extent() != 1) return wrong_length(fmt::format("'{}'", call.input_name()), call.extent(), 1);
  return Values{static_cast<int32_t>(values.size() - static_cast<size_t>(std::count(values.begin(), values.end(), ignored)))};
}

constexpr DerivedParameter kSegmentsParameters[] = {{"tokens", true}, {"row_lengths"}, {"positions"}, {"mask"}};
constexpr DerivedParameter kPositionsParameters[] = {{"segments", true}, {"given"}};
constexpr DerivedParameter kTargetsParameters[] = {{"labels", true}, {"segments", true}, {"mask"}, {"ignore_index", false, true}};
constexpr DerivedParameter kCountValidParameters[] = {{"values", true}, {"ignore_index", false, true}};

constexpr DerivedFunction kFunctions[] = {
    {"segments", "cumulative document starts [G+1] from row lengths, position restarts and the attention mask", kSegmentsParameters,
     segments},
    {"positions", "the given positions, or those counted from each segment's start", kPositionsParameters, positions},
    {"targets", "labels shifted left by one inside each segment", kTargetsParameters, targets},
    {"count_valid", "how many values are not ignored", kCountValidParameters, count_valid},
};

// What every function relies on, whoever made the table.
Status check_segments(const Values& table, size_t num_tokens) {
  if (table.empty() || table.front() != 0) return invalid_argument("a segment table starts with 0");
  for (size_t g = 1; g < table.size(); ++g) {
    if (table[g] < table[g - 1]) return invalid_argument(fmt::format("the segment table descends at entry {}", g));
  }
  if (static_cast<size_t>(table.back()) > num_tokens)
    return invalid_argument(fmt::format("the segment table ends at {}, but there are {} tokens", table.back(), num_tokens));
  return ok();
}

}  // namespace

const std::vector<int32_t>* DerivedCall::values(std::string_view parameter) const {
  for (const DerivedArgument& argument : input_.arguments) {
    if (argument.name != parameter || argument.value.empty()) continue;
    const auto found = values_.find(argument.value);
    return found == values_.end() ? nullptr : &found->second;
  }
  return nullptr;
}

int64_t DerivedCall::number(std::string_view parameter, int64_t otherwise) const {
  for (const DerivedArgument& argument : input_.arguments) {
    if (argument.name == parameter) return argument.number;
  }
  return otherwise;
}

std::span<const DerivedFunction> derived_functions() { return kFunctions; }

const DerivedFunction* find_derived_function(std::string_view name) {
  for (const DerivedFunction& function : kFunctions) {
    if (function.name == name) return &function;
  }
  return nullptr;
}

Result<std::vector<int32_t>> segment_table(size_t num_tokens, const Values* row_lengths, const Values* positions, const Values* mask) {
  if (num_tokens > INT32_MAX) return invalid_argument(fmt::format("{} tokens are too many for one step", num_tokens));
  if (positions != nullptr && positions->size() != num_tokens) return wrong_length("positions", positions->size(), num_tokens);
  if (mask != nullptr && mask->size() != num_tokens) return wrong_length("the attention mask", mask->size(), num_tokens);
  const Values one_row{static_cast<int32_t>(num_tokens)};
  Values table{0};
  size_t row_begin = 0;
  for (const int32_t length : row_lengths != nullptr ? *row_lengths : one_row) {
    if (length < 0 || static_cast<size_t>(length) > num_tokens - row_begin) {
      return invalid_argument(fmt::format("the row lengths do not add up to the {} tokens", num_tokens));
    }
    const size_t row_end = row_begin + static_cast<size_t>(length);
    for (size_t i = row_begin + 1; i < row_end; ++i) {
      const bool padding = mask != nullptr && (*mask)[i] == 0;
      const bool mask_changes = mask != nullptr && padding != ((*mask)[i - 1] == 0);
      // Positions of padding mean nothing: a run of padding is one segment.
      const bool restarts = !padding && positions != nullptr && int64_t{(*positions)[i]} != int64_t{(*positions)[i - 1]} + 1;
      if (mask_changes || restarts) table.push_back(static_cast<int32_t>(i));
    }
    if (length > 0) table.push_back(static_cast<int32_t>(row_end));
    row_begin = row_end;
  }
  if (row_begin != num_tokens) return invalid_argument(fmt::format("the row lengths do not add up to the {} tokens", num_tokens));
  return table;
}

Status derive_inputs(std::span<const ModelInput> inputs, HostValues& values) {
  for (const ModelInput& input : inputs) {
    if (input.derived_from.empty() || values.contains(input.name)) continue;
    const DerivedFunction* function = find_derived_function(input.derived_from);
    GLIM_CHECK(function != nullptr, "build() accepts only known functions");
    const DerivedCall call(input, values);
    for (const DerivedParameter& parameter : function->parameters) {
      const Values* given = parameter.is_number ? nullptr : call.values(parameter.name);
      if (parameter.required && given == nullptr) {
        const auto argument = std::find_if(input.arguments.begin(), input.arguments.end(),
                                           [&](const DerivedArgument& a) { return a.name == parameter.name; });
        return invalid_argument(fmt::format("input '{}' is computed from '{}', which was not given", input.name,
                                            argument == input.arguments.end() ? parameter.name : argument->value));
      }
      if (parameter.name == "segments" && given != nullptr) {
        if (Status good = check_segments(*given, call.extent()); !good)
          return invalid_argument(fmt::format("input '{}': {}", input.name, good.error().message));
      }
    }
    Result<Values> derived = function->run(call);
    if (!derived) return invalid_argument(fmt::format("input '{}': {}", input.name, derived.error().message));
    values[input.name] = *std::move(derived);
  }
  return ok();
}

Status check_input(const ModelInput& input, std::span<const int32_t> values) {
  if (static_cast<int64_t>(values.size()) != input.type.shape.numel()) {
    return invalid_argument(fmt::format("input '{}' has {} elements, but {} needs {}", input.name, values.size(), to_string(input.type),
                                        input.type.shape.numel()));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t value = values[i];
    const bool allowed = input.allow && value == *input.allow;
    if (input.range && !allowed && (value < input.range->first || value > input.range->second)) {
      return invalid_argument(fmt::format("input '{}' holds {} at position {}; it must be in [{}, {}]{}", input.name, value, i,
                                          input.range->first, input.range->second, input.allow ? fmt::format(" or {}", *input.allow) : ""));
    }
    if (input.ascending && i > 0 && values[i] < values[i - 1]) {
      return invalid_argument(fmt::format("input '{}' descends at position {}: {} after {}", input.name, i, values[i], values[i - 1]));
    }
  }
  return ok();
}

}  // namespace glim
