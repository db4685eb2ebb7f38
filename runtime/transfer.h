#pragma once
#include <optional>
#include <string>

#include "runtime/model_source.h"

namespace glim {

struct TransferOptions {
  std::optional<DType> dtype;               // of the parameters; absent: as they are
  std::optional<uint64_t> max_shard_bytes;  // new shards; absent: the shards of the source
};
// Reads the checkpoint of `source` through the model's parameter names, checks every tensor against the model, and writes an HF
// folder: the same configuration, the same shards. Tensors that the model ignores come along. Without options the files are
// byte for byte those of the source. Nothing is held in memory but one tensor at a time.
Status transfer_checkpoint(const ModelSource& source, const std::string& folder, const TransferOptions& options);

}  // namespace glim
