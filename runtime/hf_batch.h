#pragma once
// A batch as Hugging Face models take it: [B, S] tensors by name, turned into one flat token axis.
#include <map>
#include <string>
#include <vector>

#include "runtime/safetensors.h"

namespace glim {

struct HfBatch {
  int64_t num_rows = 0, row_length = 0;                             // B, S
  std::map<std::string, std::vector<int32_t>, std::less<>> values;  // host values for Model::set_inputs
  int64_t num_segments = 0;
  bool has_labels = false;
};

// Reads input_ids and, where they are there, labels (unshifted), attention_mask and position_ids, with or without "in." before
// each name (when any name has it, the others are not looked at). As in transformers, restarting position_ids mark packed documents only
// when there is no attention_mask. kInvalidFile names what is missing, unknown, of another shape or out of range.
Result<HfBatch> read_hf_batch(const SafetensorsFile& file);

}  // namespace glim
