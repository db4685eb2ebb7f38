#pragma once
// What the host's tests are written with. The library prints nothing, so neither do they until something is wrong.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <glim/glim.h>

#include "snake.h"

#define EXPECT(condition) ((condition) ? void(0) : ::embedding::fail(__FILE__, __LINE__, #condition))
#define EXPECT_HOLDS(text, part) ::embedding::expect_holds(__FILE__, __LINE__, (text), (part))

namespace embedding {

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::exit(1);
}
inline void expect_holds(const char* file, int line, const std::string& text, const std::string& part) {
  if (text.find(part) == std::string::npos) fail(file, line, "'" + text + "' does not hold '" + part + "'");
}
// The value of a result that must be there.
template <class T>
T take(glim::Result<T> result) {
  if (!result) fail("", 0, result.error().to_string());
  return *std::move(result);
}
inline void take(const glim::Status& status) {
  if (!status) fail("", 0, status.error().to_string());
}

inline glim::LoadOptions own_options() {
  glim::LoadOptions options{.tokens = 64, .segments = 4, .threads = 2};
  options.ops = {snake(), snake_grad()};
  return options;
}
inline glim::Model own_model(const std::string& folder, const glim::LoadOptions& options) {
  return take(glim::Model::load(folder + "/model.toml", options));
}
// Documents that count in steps of 1 to 3, modulo the vocabulary: what follows can be learned.
inline glim::Batch counting_batch(int first, int num_documents = 4, int length = 16) {
  glim::Batch batch;
  for (int d = 0; d < num_documents; ++d) {
    glim::Document document;
    for (int i = 0; i < length; ++i) document.tokens.push_back((first + 5 * d + (1 + d % 3) * i) % 23);
    batch.documents.push_back(document);
  }
  return batch;
}

void test_errors(const std::string& folder);  // errors_test.cpp
void test_ops(const std::string& folder);     // ops_test.cpp

}  // namespace embedding
