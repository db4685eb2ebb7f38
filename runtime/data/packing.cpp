#include "runtime/data/packing.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "runtime/random.h"

namespace glim {
namespace {

// The n-th number is a function of the seed alone, the same on every machine (std::shuffle is not).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    const uint64_t value = mix_bits(state_);
    state_ += kMixStep;
    return value;
  }
  // Uniform below `bound` > 0, without the bias of a remainder.
  uint64_t below(uint64_t bound) {
    const uint64_t first_fair = -bound % bound;  // 2^64 mod bound
    uint64_t value = next();
    while (value < first_fair) value = next();
    return value % bound;
  }

 private:
  uint64_t state_;
};

std::vector<uint32_t> identity(size_t count) {
  std::vector<uint32_t> out(count);
  std::iota(out.begin(), out.end(), 0U);
  return out;
}

void shuffle(std::span<uint32_t> items, Random& random) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.below(i)]);
}

}  // namespace

// Best fit, longest first: each piece goes to the fullest row that still has room.
Packing::Packing(std::vector<Piece> pieces, int64_t tokens) : pieces_(std::move(pieces)), ranks_(pieces_.size()) {
  std::stable_sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) { return a.length > b.length; });
  std::set<std::pair<int64_t, uint32_t>> open;  // {room, row}
  std::vector<uint32_t> row_of_rank;
  for (const Piece& piece : pieces_) {
    const auto best = open.lower_bound({piece.length, 0});
    std::pair<int64_t, uint32_t> row{tokens, static_cast<uint32_t>(row_starts_.size() - 1)};
    if (best == open.end()) {
      row_starts_.push_back(0);
    } else {
      row = *best;
      open.erase(best);
    }
    row_of_rank.push_back(row.second);
    ++row_starts_[row.second + 1];  // a count until all are known
    row.first -= piece.length;
    if (row.first > 0) open.insert(row);
  }
  std::partial_sum(row_starts_.begin(), row_starts_.end(), row_starts_.begin());
  std::vector<uint64_t> next(row_starts_);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[next[row_of_rank[rank]]++] = static_cast<uint32_t>(rank);
}

std::span<const uint32_t> Packing::row(int64_t index) const {
  const auto i = static_cast<size_t>(index);
  return std::span(ranks_).subspan(row_starts_[i], row_starts_[i + 1] - row_starts_[i]);
}

EpochOrder::EpochOrder(const Packing& packing, uint64_t seed, int64_t epoch_number)
    : epoch(epoch_number), piece_of_rank(identity(packing.pieces().size())), rows(identity(static_cast<size_t>(packing.num_rows()))) {
  Random random(Random(seed).next() ^ static_cast<uint64_t>(epoch) * 0xd1342543de82ef95ULL);
  const auto& pieces = packing.pieces();
  for (size_t begin = 0, end = 0; begin < pieces.size(); begin = end) {  // pieces of one length change places
    while (end < pieces.size() && pieces[end].length == pieces[begin].length) ++end;
    shuffle(std::span(piece_of_rank).subspan(begin, end - begin), random);
  }
  shuffle(rows, random);
}

}  // namespace glim
