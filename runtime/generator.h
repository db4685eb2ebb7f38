#pragma once
// Text generation by recomputing the whole prefix for every token.
#include <functional>
#include <vector>

#include "runtime/model.h"

namespace glim {

struct SamplingOptions {
  double temperature = 0;  // 0 = greedy (the most likely token; ties: the lowest id)
  int64_t top_k = 0;       // keep the k most likely tokens; 0 = all
  double top_p = 1;        // keep the most likely tokens until their probabilities add up to this
  uint64_t seed = 1;
  std::vector<int32_t> stop;  // generation ends after one of these
  uint64_t first_draw = 0;    // tokens drawn from this seed before: a generation that goes on in a larger program draws the same
};

// Chooses a token from capped logits [V]. `draw` counts the tokens chosen so far: the same seed and draw choose alike.
[[nodiscard]] int32_t sample_token(std::span<const double> logits, const SamplingOptions& options, uint64_t draw);

// `model` has a kForward program with the output row_logits, with R = G = 1 and T >= prompt + num_tokens. Calls on_token for each new
// token.
Result<std::vector<int32_t>> generate(Model& model, std::vector<int32_t> prompt, int64_t num_tokens, const SamplingOptions& options,
                                      const std::function<void(int32_t)>& on_token);

}  // namespace glim
