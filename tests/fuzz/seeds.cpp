#include "tests/fuzz/seeds.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/print.h"
#include "models/build.h"
#include "ops/builtin_ops.h"
#include "runtime/safetensors.h"

namespace glim {
namespace {

namespace fs = std::filesystem;
const fs::path kSource = GLIM_SOURCE_DIR;

std::string content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Files of a folder by name.
std::vector<fs::path> files_of(const fs::path& folder, std::string_view ending) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().string().ends_with(ending)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> contents_of(const fs::path& folder, std::string_view ending) {
  std::vector<std::string> texts;
  for (const fs::path& file : files_of(folder, ending)) texts.push_back(content(file));
  return texts;
}

std::vector<std::string> toml_models() {
  std::vector<std::string> texts = contents_of(kSource / "models", ".toml");
  for (std::string& text : contents_of(kSource / "tests/spec", ".toml")) texts.push_back(std::move(text));
  return texts;
}

// The names and dtypes of golden files, a few tensors each, with a handful of elements.
std::vector<std::string> safetensors_files() {
  std::vector<std::string> texts;
  for (const fs::path& path : files_of(kSource / "tests/golden", ".safetensors")) {
    const Result<SafetensorsFile> file = SafetensorsFile::open(path.string());
    GLIM_CHECK(file, file.error().message);
    std::vector<TensorSpec> specs;
    uint64_t num_bytes = 0;
    for (const FileTensor& tensor : file->tensors().first(std::min<size_t>(file->tensors().size(), 4))) {
      specs.push_back(tensor.spec);
      for (int64_t& dim : specs.back().shape) dim = std::min<int64_t>(dim, 2);
      num_bytes += *checked_bytes(specs.back().dtype, specs.back().shape);
    }
    const Result<std::string> header = safetensors_header(specs, file->metadata());
    GLIM_CHECK(header, header.error().message);
    texts.push_back(*header + std::string(num_bytes, 'x'));
  }
  return texts;
}

std::vector<std::string> graphs() {
  std::vector<std::string> texts;
  for (const char* model : {"llama_tiny", "muse_glimmer_tiny"}) {
    Result<ModelSpec> spec = load_spec((kSource / "models" / (std::string(model) + ".toml")).string());
    GLIM_CHECK(spec, spec.error().to_string());
    for (NamedScalar& dim : spec->dims) {
      if (dim.name.text == "num_layers") dim.value.integer = 1;
    }
    for (const char* output : {"loss", "logits"}) {
      BuildOptions options;
      for (const RuntimeDim& dim : spec->runtime_dims) options.runtime_dims[dim.name.text] = 4;
      options.outputs = {output};
      const Result<BuiltModel> built = build(*spec, builtin_ops(), options);
      GLIM_CHECK(built, built.error().to_string());
      texts.push_back(print(built->graph));
    }
  }
  // Every op by itself, on the shapes of its own test cases.
  for (uint16_t row = 1; row < builtin_ops().size(); ++row) {
    const OpDef& def = builtin_ops()[OpId{row}];
    for (const OpCase& each : def.cases()) {
      Graph graph(builtin_ops());
      std::vector<ValueId> operands;
      for (const CaseInput& input : each.inputs) {
        if (input.fill == Fill::kAbsent) {
          operands.push_back({});
          continue;
        }
        const DType dtype = input.dtype == CaseDType::kI32   ? DType::kI32
                            : input.dtype == CaseDType::kI64 ? DType::kI64
                            : input.dtype == CaseDType::kF64 ? DType::kF64
                                                             : DType::kF32;
        operands.push_back(graph.add_leaf(LeafKind::kParameter, "p" + std::to_string(operands.size()), {dtype, input.shape}));
      }
      const Result<NodeId> node = graph.emit(OpId{row}, operands, std::span<const uint32_t>(each.attr_words));
      GLIM_CHECK(node, node.error().message);
      graph.add_output("y", graph.output(*node));
      if (!operands.empty() && operands[0].valid() && graph.type(operands[0]) == graph.type(graph.output(*node)))
        graph.add_update(operands[0], graph.output(*node));
      texts.push_back(print(graph));
      break;
    }
  }
  return texts;
}

std::vector<std::string> data_lines() {
  return {"{\"text\": \"one document\"}\n{\"text\": \"\"}\n", "{\"prompt\": \"2 + 2 = \", \"completion\": \"4\"}\n",
          "{\"input_ids\": [1, 2, 3], \"labels\": [-100, 2, 3]}\n\n{\"input_ids\": []}\n", "{\"text\": \"\\u00e9\\ud83d\\ude00\\n\"}"};
}

}  // namespace

std::vector<std::string> seeds_of(std::string_view target) {
  if (target == "toml_model_fuzz") return toml_models();
  if (target == "safetensors_fuzz") return safetensors_files();
  if (target == "graph_text_fuzz") return graphs();
  if (target == "json_config_fuzz") return contents_of(kSource / "tests/golden", "config.json");
  if (target == "jsonl_fuzz") return data_lines();
  return {};
}

}  // namespace glim
