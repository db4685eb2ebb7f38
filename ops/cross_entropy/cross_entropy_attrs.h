#pragma once
// Apart from cross_entropy.h, because CUDA files include this (and no fmt).
#include <cstdint>
#include <string_view>

namespace glim::ops {

enum class Reduction : int64_t { kMean, kSum };
inline constexpr std::string_view kReductionNames[] = {"mean", "sum"};

struct CrossEntropyAttrs {
  int64_t ignore_index;
  Reduction reduction;
  int64_t chunk_rows;  // only used by linear_cross_entropy, which the chain that ends in this op may become
};
inline constexpr CrossEntropyAttrs kCrossEntropyDefaults{-100, Reduction::kMean, 2048};

// The outputs of cross_entropy, linear_cross_entropy and (its first seven) linear_cross_entropy_grad. "acc" is the accumulation type.
// Ignored rows have row_loss 0, row_prediction -1 and row_lse 0.
enum CrossEntropyOutput : uint16_t {
  kLoss,           // acc[1]: sum of row_loss, for kMean over the denominator (0 when that is 0)
  kTokenAccuracy,  // acc[1]: num_correct / num_valid, 0 without valid rows
  kNumCorrect,     // i64[1]
  kNumValid,       // i64[1]: rows whose label is not ignore_index
  kRowLoss,        // acc[T]: -log softmax(logits)[label]
  kRowPrediction,  // i32[T]: argmax, the lowest index on a tie
  kRowLse,         // acc[T]: log of the sum of exp(logits); a saved primal, no cotangent flows into it
  kNumCrossEntropyOutputs,
};

}  // namespace glim::ops
