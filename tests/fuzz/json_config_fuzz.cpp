// A config.json of Hugging Face -> spec -> graph, and back to a config.json that says the same.
#include <cstddef>

#include "engine/verify.h"
#include "models/build.h"
#include "models/hf_config.h"
#include "ops/builtin_ops.h"

namespace {
const glim::ModelSpec& base(std::string_view text) {
  const auto load = [](const char* file) {
    glim::Result<glim::ModelSpec> spec = glim::load_spec(file);
    GLIM_CHECK(spec, spec.error().to_string());
    return *std::move(spec);
  };
  static const glim::ModelSpec kLlama = load(GLIM_SOURCE_DIR "/models/llama.toml");
  static const glim::ModelSpec kMuseGlimmer = load(GLIM_SOURCE_DIR "/models/muse_glimmer.toml");
  return text.find("\"llama\"") != std::string_view::npos ? kLlama : kMuseGlimmer;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace glim;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<ModelSpec> spec = fill_from_hf_config(base(text), text, "config.json");
  if (!spec) {
    GLIM_CHECK(!spec.error().message.empty() && spec.error().where.file + spec.error().message != "", "an error without a message");
    return 0;
  }
  BuildOptions options;
  options.max_instances = 2000;
  options.outputs = {"loss"};
  for (const RuntimeDim& dim : spec->runtime_dims) options.runtime_dims[dim.name.text] = 3;
  const Result<BuiltModel> built = build(*spec, builtin_ops(), options);
  if (!built) return 0;
  const Status lawful = verify(built->graph);
  GLIM_CHECK(lawful, lawful.error().to_string());
  const Result<std::string> written = hf_config_from_spec(*spec, DType::kF32);
  if (!written) return 0;  // a layer value that its map does not have
  const Result<ModelSpec> back = fill_from_hf_config(base(*written), *written, "written");
  GLIM_CHECK(back, back.error().to_string() + "\n" + *written);
  const Result<std::string> again = hf_config_from_spec(*back, DType::kF32);
  GLIM_CHECK(again && *again == *written, *written);
  return 0;
}
