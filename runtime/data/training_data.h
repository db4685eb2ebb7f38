#pragma once
// Documents as rows of T tokens to train on. A document that fits into a row is never split; a longer one is cut into pieces of T
// tokens (the last one shorter) or dropped, as the configuration says. Pieces are packed whole into rows, each a segment of its own:
// nothing attends or predicts across pieces.
//
// Every token of the training part is in exactly one row of each epoch. What step k reads is a pure function of (files, options,
// k): resuming needs no state.
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/error.h"
#include "runtime/data/data_config.h"
#include "runtime/data/documents.h"
#include "runtime/data/packing.h"
#include "runtime/data/token_batch.h"
#include "runtime/data/vocabulary.h"

namespace glim {

struct DataOptions {
  int64_t tokens = 512;  // T, length of a row: 2 to 2^30
  uint64_t seed = 0;     // of the order; the validation part does not depend on it
  int micro_steps = 1;   // rows per optimizer step
};

// What the documents became.
struct DataStatistics {
  struct Part {
    int64_t num_pieces = 0, num_tokens = 0, num_valid = 0, num_rows = 0;  // of one epoch
    double padding = 0;                                                   // share of the rows' places that hold no token
  };
  Part training, validation;
  int64_t num_documents = 0;                        // read, empty ones included
  int64_t num_empty = 0;                            // without a token: they are in no row
  int64_t num_unlabelled = 0;                       // without a target: they are in rows, but nothing is learnt from them
  int64_t num_split = 0;                            // longer than T, cut into pieces
  int64_t num_dropped = 0, num_dropped_tokens = 0;  // longer than T, left out
};

// Thread-safe.
class TrainingData {
 public:
  // When pieces are held out by fraction, they are evenly spread over the documents in their order; at least one is held out and at
  // least one is kept. Errors: kInvalidArgument for options; kIo; kInvalidFile at the file's line for documents that are malformed or
  // do not fit the vocabulary, for a folder without data, and when there is too little.
  [[nodiscard]] static Result<TrainingData> load(const DataConfig& config, const DataOptions& options, const Vocabulary& vocabulary);

  // Row `micro_step` of optimizer step `step`, both from 0; the data goes round for ever, epoch after epoch.
  [[nodiscard]] TokenBatch batch(int64_t step, int micro_step = 0) const;
  // The number of valid targets in all micro-steps of a step: the denominator of its loss. It may be 0.
  [[nodiscard]] int64_t step_num_valid(int64_t step) const;
  // Row 0 to num_validation_rows() - 1 of the held-out part, always in the same order.
  [[nodiscard]] TokenBatch validation_batch(int64_t row) const;

  [[nodiscard]] int64_t num_rows() const { return training_.num_rows(); }  // of one epoch
  [[nodiscard]] int64_t num_validation_rows() const { return validation_.num_rows(); }
  [[nodiscard]] int64_t num_tokens() const { return statistics_.training.num_tokens; }  // of one epoch
  [[nodiscard]] int64_t num_validation_tokens() const { return statistics_.validation.num_tokens; }
  [[nodiscard]] int64_t max_segments() const { return max_segments_; }  // over all rows, validation included
  [[nodiscard]] const DataOptions& options() const { return options_; }
  [[nodiscard]] const DataStatistics& statistics() const { return statistics_; }
  // 32 hexadecimal digits over all documents in their order: their number, lengths, tokens and labels, whatever files they came from.
  // Not over the options, nor over what is held out by fraction or dropped.
  [[nodiscard]] const std::string& fingerprint() const { return fingerprint_; }

 private:
  struct Cache {  // the order of the epoch that was asked for last
    std::mutex mutex;
    std::shared_ptr<const EpochOrder> order;
  };

  TrainingData() = default;
  [[nodiscard]] Status cut(const Documents& documents, Overlong overlong, uint32_t first_block, std::vector<Piece>& pieces);
  [[nodiscard]] DataStatistics::Part describe(const Packing& packing) const;
  [[nodiscard]] std::shared_ptr<const EpochOrder> order(int64_t epoch) const;
  [[nodiscard]] std::vector<Piece> training_row(int64_t step, int micro_step) const;
  [[nodiscard]] TokenBatch make_batch(std::span<const Piece> row) const;

  DataOptions options_;
  std::vector<TokenBlock> blocks_;
  Packing training_, validation_;
  int64_t max_segments_ = 0;
  DataStatistics statistics_;
  std::string fingerprint_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace glim
