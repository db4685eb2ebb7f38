// Bytes -> TOML -> spec -> graph. What builds must satisfy the laws of a graph.
#include <cstddef>

#include "engine/verify.h"
#include "models/build.h"
#include "ops/builtin_ops.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace glim;
  // Beside the shipped models, so that `extends` reaches them.
  const Result<ModelSpec> spec = parse_spec({reinterpret_cast<const char*>(data), size}, GLIM_SOURCE_DIR "/models/input.toml");
  if (!spec) {
    GLIM_CHECK(!spec.error().message.empty() && spec.error().where.line >= 0, spec.error().to_string());
    return 0;
  }
  BuildOptions options;
  options.max_instances = 2000;
  for (const RuntimeDim& dim : spec->runtime_dims) options.runtime_dims[dim.name.text] = 3;
  for (const InputSpec& input : spec->inputs) {
    if (input.optional && size % 2 == 1) options.optional_inputs.push_back(input.name.text);
  }
  const Result<BuiltModel> built = build(*spec, builtin_ops(), options);
  if (!built) {
    GLIM_CHECK(!built.error().message.empty(), "an error without a message");
    return 0;
  }
  const Status lawful = verify(built->graph);
  GLIM_CHECK(lawful, lawful.error().to_string());
  return 0;
}
