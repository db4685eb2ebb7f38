#pragma once
// The worst error per kind of check, printed after the tests of a program.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <string>

namespace glim::testing {

class WorstErrors : public ::testing::Environment {
 public:
  void add(const std::string& kind, const std::string& where, double error) {
    Worst& w = worst_[kind];
    ++w.checks;
    if (w.where.empty() || error > w.error || std::isnan(error)) w = {error, w.checks, where};
  }
  void TearDown() override {
    for (const auto& [kind, w] : worst_) fmt::print("[ worst ] {:<32} {:8.2e} of {} checks, at {}\n", kind, w.error, w.checks, w.where);
  }

 private:
  struct Worst {
    double error = 0;
    int64_t checks = 0;
    std::string where;
  };
  std::map<std::string, Worst> worst_;
};

}  // namespace glim::testing
