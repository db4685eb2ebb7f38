#pragma once
// Reference cases of tests/golden, and how far results are from them.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/runtime/scratch_folder.h"

namespace glim {

using Tensors = std::map<std::string, Values>;

// case.json: NaN stands there for the mean over nothing, and is no JSON.
inline nlohmann::json read_case(const std::string& name) {
  std::string text = read_file(golden_folder(name) + "/case.json");
  if (const size_t at = text.find(": NaN"); at != std::string::npos) text.replace(at, 5, ": null");
  return nlohmann::json::parse(text);
}

// Sums for a relative L2 distance over one tensor or many.
struct Distance {
  double difference = 0, reference = 0;

  void add(double got, double expected) {
    difference += (got - expected) * (got - expected);
    reference += expected * expected;
  }
  // Rows (all but the last axis) whose mask is 0 are left out; an empty mask takes all.
  void add(const Values& got, const Values& expected, const std::vector<double>& mask = {}) {
    ASSERT_EQ(got.shape, expected.shape);
    ASSERT_EQ(got.at.size(), expected.at.size());
    const auto width = static_cast<size_t>(expected.shape.back());
    for (size_t i = 0; i < expected.at.size(); ++i) {
      if (mask.empty() || mask.at(i / width) != 0) add(got.at[i], expected.at[i]);
    }
  }
  // Infinite for a reference that is zero, which proves nothing.
  [[nodiscard]] double relative() const { return reference > 0 ? std::sqrt(difference / reference) : INFINITY; }
};
inline double distance(const Values& got, const Values& expected, const std::vector<double>& mask = {}) {
  Distance sum;
  sum.add(got, expected, mask);
  return sum.relative();
}

inline Tensors with_prefix(const Tensors& tensors, const std::string& prefix) {
  Tensors found;
  for (const auto& [name, values] : tensors) {
    if (name.starts_with(prefix)) found[name] = values;
  }
  return found;
}
inline std::vector<std::string> names_of(const Tensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, values] : tensors) names.push_back(name);
  return names;
}

}  // namespace glim
