#pragma once
// The search of Rematerialise::kAuto, on plain arrays.
#include <cstdint>
#include <vector>

#include "engine/passes/rematerialise_choice.h"

namespace glim {

// A set of items that run again, with its price kept up to date. Whatever is needed and not produced again is saved.
class RematerialisationSelection {
 public:
  explicit RematerialisationSelection(const RematerialisationProblem& problem);
  void flip(uint32_t item);
  // Drops items whose results nobody reads.
  void prune();
  [[nodiscard]] bool is_recomputed(uint32_t item) const { return recomputed_[item] != 0; }
  [[nodiscard]] bool is_used(uint32_t item) const;
  [[nodiscard]] bool is_saved(uint32_t buffer) const;
  [[nodiscard]] double seconds() const { return seconds_; }
  [[nodiscard]] double bytes() const { return bytes_; }

 private:
  const RematerialisationProblem* problem_;
  std::vector<uint8_t> recomputed_;  // by item
  std::vector<uint32_t> uses_;       // by buffer: the backward pass, and items that run again
  double seconds_ = 0, bytes_ = 0;
};

// The fewest saved bytes, then the least time; `pinned` in addition to the items' own.
[[nodiscard]] RematerialisationSelection fewest_bytes(const RematerialisationProblem& problem, const std::vector<bool>& pinned);
// The least time within `budget` bytes.
[[nodiscard]] RematerialisationSelection least_time(const RematerialisationProblem& problem, double budget,
                                                    const RematerialisationSearch& search);

}  // namespace glim
