#pragma once
// One row of T tokens as a program takes it: documents one after another, each a segment.
#include <cstdint>
#include <vector>

namespace glim {

inline constexpr int32_t kNoTarget = -100;

struct TokenBatch {
  std::vector<int32_t> tokens;     // [T], 0 after the last segment
  std::vector<int32_t> positions;  // [T], from 0 in each segment, 0 after the last
  std::vector<int32_t> targets;    // [T], the next token of the segment if it is a label; -100 elsewhere
  std::vector<int32_t> segments;   // [max_segments + 1], cumulative: segment g is [segments[g], segments[g+1]); the rest are empty
  int64_t num_segments = 0, num_tokens = 0, num_valid = 0;  // not empty, their tokens, and targets that are not -100
};

}  // namespace glim
