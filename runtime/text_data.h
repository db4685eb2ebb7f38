#pragma once
// Text files as training data for a model over bytes (token = byte). A file is a document; a document of more than T bytes is
// cut into pieces of T bytes (the last one shorter), so that one large file is used to its last byte. Pieces are packed whole
// into rows of T tokens, each a segment of its own: nothing attends or predicts across pieces.
//
// Every byte of the training part is in exactly one row of each epoch. What step k reads is a pure function of (files, options,
// k): resuming needs no state. All epochs have the same number of rows, whatever their order, so finding step k costs nothing:
// pieces are packed longest first, which makes the row pattern depend on lengths only; the epoch's permutation says which of
// the pieces of a length goes where, and the order of the rows.
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/error.h"
#include "runtime/mapped_file.h"

namespace glim {

struct TextDataOptions {
  int64_t tokens = 512;  // T, length of a row: 2 to 2^30
  uint64_t seed = 0;     // of the order; the validation part does not depend on it
  int micro_steps = 1;   // rows per optimizer step
  // Share of the pieces held out, evenly spread over the files in their order: 0 to under 1. When it is above 0, at least one
  // piece is held out and at least one is kept.
  double validation_fraction = 0;
};

struct TextBatch {
  std::vector<int32_t> tokens;     // [T], 0 after the last piece
  std::vector<int32_t> positions;  // [T], from 0 in each piece, 0 after the last
  std::vector<int32_t> targets;    // [T], the next token of the piece; -100 at its end and after the last piece
  std::vector<int32_t> segments;   // [max_segments + 1], cumulative: piece g is [segments[g], segments[g+1]); the rest are empty
  int64_t num_segments = 0, num_tokens = 0, num_valid = 0;  // pieces, their bytes, and targets that are not -100
};

// Thread-safe.
class TextData {
 public:
  // Each path is a file, or a folder whose *.txt files are taken in the order of their names (not those of its sub-folders).
  // Errors: kInvalidArgument for options; kIo; kInvalidFile for a folder without text, and when there is too little.
  [[nodiscard]] static Result<TextData> load(std::span<const std::string> paths, const TextDataOptions& options);

  // Row `micro_step` of optimizer step `step`, both from 0; the data goes round for ever, epoch after epoch.
  [[nodiscard]] TextBatch batch(int64_t step, int micro_step = 0) const;
  // The number of valid targets in all micro-steps of a step: the denominator of its loss.
  [[nodiscard]] int64_t step_num_valid(int64_t step) const;
  // Row 0 to num_validation_rows() - 1 of the held-out part, always in the same order.
  [[nodiscard]] TextBatch validation_batch(int64_t row) const;

  [[nodiscard]] int64_t num_rows() const { return static_cast<int64_t>(training_.rows.size()); }  // of one epoch
  [[nodiscard]] int64_t num_validation_rows() const { return static_cast<int64_t>(validation_.rows.size()); }
  [[nodiscard]] int64_t num_bytes() const { return training_.num_bytes; }  // of one epoch
  [[nodiscard]] int64_t num_validation_bytes() const { return validation_.num_bytes; }
  [[nodiscard]] int64_t max_segments() const { return max_segments_; }  // over all rows, validation included
  [[nodiscard]] const TextDataOptions& options() const { return options_; }

 private:
  struct Piece {
    uint32_t file;
    int64_t begin, length;
  };
  // Pieces, longest first, and how they pack: rows hold ranks, places in that order.
  struct Part {
    std::vector<Piece> pieces;
    std::vector<std::vector<uint32_t>> rows;
    int64_t num_bytes = 0;
  };
  struct EpochOrder {
    int64_t epoch;
    std::vector<uint32_t> piece_of_rank;  // swaps pieces of one length only, so that every row stays within T
    std::vector<uint32_t> rows;
  };
  struct Cache {  // the order of the epoch that was asked for last
    std::mutex mutex;
    std::shared_ptr<const EpochOrder> order;
  };

  TextData() = default;
  void split();
  static void pack(Part& part, int64_t tokens);
  [[nodiscard]] std::shared_ptr<const EpochOrder> order(int64_t epoch) const;
  [[nodiscard]] std::vector<Piece> training_row(int64_t step, int micro_step) const;
  [[nodiscard]] TextBatch make_batch(std::span<const Piece> row) const;

  TextDataOptions options_;
  std::vector<MappedFile> files_;
  Part training_, validation_;
  int64_t max_segments_ = 0;
  std::unique_ptr<Cache> cache_;
};

}  // namespace glim
