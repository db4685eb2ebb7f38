// Text -> graph, with the real op table. What parses is lawful, and its printed text is a fixed point.
#include <cstddef>

#include "engine/parse.h"
#include "engine/print.h"
#include "engine/verify.h"
#include "ops/builtin_ops.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace glim;
  const Result<Graph> graph = parse({reinterpret_cast<const char*>(data), size}, builtin_ops(), "g");
  if (!graph) {
    GLIM_CHECK(graph.error().code == ErrorCode::kInvalidFile && graph.error().where.line > 0 && !graph.error().message.empty(),
               graph.error().to_string());
    return 0;
  }
  const Status lawful = verify(*graph);
  GLIM_CHECK(lawful, lawful.error().to_string());
  const std::string text = print(*graph);
  const Result<Graph> back = parse(text, builtin_ops());
  GLIM_CHECK(back, back.error().to_string());
  GLIM_CHECK(print(*back) == text, text);
  for (uint32_t n = 0; n < graph->num_nodes(); ++n) {  // facts of every node: pure functions of types and attributes
    GLIM_CHECK(graph->cost({n}).flops >= 0, text);
    for (uint16_t output = 0; output < graph->node({n}).num_outputs; ++output) (void)graph->alias({n}, output);
  }
  return 0;
}
