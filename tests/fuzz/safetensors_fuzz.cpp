// Bytes -> safetensors. The tensors of an accepted file cover its data exactly, and writing its header gives the same tensors again.
#include "runtime/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace glim;
  const auto bytes = std::as_bytes(std::span(data, size));
  const Result<SafetensorsContent> content = parse_safetensors(bytes, "x");
  if (!content) {
    GLIM_CHECK(content.error().code == ErrorCode::kInvalidFile && content.error().message.size() < 2000, "an unclear error");
    return 0;
  }
  size_t end = 0;  // of the tensors so far, counted from the end of the file
  std::vector<TensorSpec> specs;
  for (const FileTensor& tensor : content->tensors) {
    specs.push_back(tensor.spec);
    end += tensor.data.size();
    GLIM_CHECK(
        tensor.data.empty() || (tensor.data.data() >= bytes.data() && tensor.data.data() + tensor.data.size() <= bytes.data() + size),
        "a tensor outside the file");
  }
  GLIM_CHECK(end <= size - 8, "the tensors overlap");
  const Result<std::string> header = safetensors_header(specs, content->metadata);
  GLIM_CHECK(header, header.error().message);
  std::string again = *header;
  const auto all_data = bytes.last(end);
  again.append(reinterpret_cast<const char*>(all_data.data()), all_data.size());
  const Result<SafetensorsContent> back = parse_safetensors(std::as_bytes(std::span(again)), "again");
  GLIM_CHECK(back, back.error().message);
  GLIM_CHECK(back->metadata == content->metadata && back->tensors.size() == specs.size(), "written and read back, the file differs");
  for (size_t k = 0; k < specs.size(); ++k) GLIM_CHECK(back->tensors[k].spec == specs[k], "written and read back, a tensor differs");
  return 0;
}
