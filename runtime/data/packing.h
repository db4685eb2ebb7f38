#pragma once
// Pieces of documents packed into rows of T tokens, and the order of an epoch.
//
// All epochs have the same number of rows, whatever their order, so finding a step costs nothing: pieces are packed longest first,
// which makes the row pattern depend on lengths only; the epoch's permutation says which of the pieces of a length goes where, and
// the order of the rows.
#include <cstdint>
#include <span>
#include <vector>

namespace glim {

struct Piece {
  uint32_t block;     // index of its TokenBlock
  int32_t length;     // 1 to T
  int32_t num_valid;  // labels among its tokens, its first not counted: nothing predicts that
  int64_t begin;      // its first token in the block
};

// Pieces, longest first, and how they pack: a row is a list of ranks, places in that order.
class Packing {
 public:
  Packing() = default;
  Packing(std::vector<Piece> pieces, int64_t tokens);

  [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }
  [[nodiscard]] int64_t num_rows() const { return static_cast<int64_t>(row_starts_.size()) - 1; }
  [[nodiscard]] std::span<const uint32_t> row(int64_t index) const;

 private:
  std::vector<Piece> pieces_;
  std::vector<uint64_t> row_starts_{0};  // [num_rows + 1] in ranks_
  std::vector<uint32_t> ranks_;
};

// A pure function of its arguments, the same on every machine.
struct EpochOrder {
  EpochOrder(const Packing& packing, uint64_t seed, int64_t epoch);

  int64_t epoch;
  std::vector<uint32_t> piece_of_rank;  // exchanges pieces of one length only, so that every row stays within T
  std::vector<uint32_t> rows;
};

}  // namespace glim
