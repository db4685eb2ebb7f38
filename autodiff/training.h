#pragma once
// The training programs of a model, built as graph: micro-steps (forward, backward, main gradients) and the optimizer's update.
#include <functional>
#include <string>
#include <vector>

#include "engine/graph.h"

namespace glim {

// Names of the leaves that training adds.
[[nodiscard]] std::string gradient_name(std::string_view parameter);    // "gradient.decoder.3.q_proj"
inline constexpr std::string_view kSeedName = "seed.loss";              // acc[1], 1 for a plain loss
inline constexpr std::string_view kLearningRateName = "learning_rate";  // acc[1]
inline constexpr std::string_view kStepName = "adamw.step";             // acc[1]: updates done so far

struct Backward {
  std::string loss = "loss";                               // the output that is differentiated, acc[1]
  std::function<bool(std::string_view parameter)> trains;  // absent: every parameter is trained
  bool accumulate = false;                                 // main gradients: added to (the next micro-steps) or replaced (the first)
};
// Appends the backward pass to a forward graph. Main gradients are leaves of kind kGradient in the accumulation type; a parameter that
// the loss does not depend on gets zeros. Fails when there is no such output or nothing to train.
[[nodiscard]] Status append_backward(Graph& graph, const Backward& options);

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, max_norm = 1.0;  // max_norm <= 0: no clipping
  // Of parameters below f32: an f32 copy is part of the state. Without one, updates are rounded stochastically: 4 bytes less a parameter.
  bool master_weights = true;
};
// The update program: global norm of all main gradients, clipping, AdamW (Loshchilov and Hutter, arXiv:1711.05101; bias corrections as
// in PyTorch). A step whose norm is not finite changes nothing.
// Inputs: learning_rate. Outputs: gradient_norm acc[1] (before clipping), finite i32[1] (1 = the step was taken).
// `parameters` are the trained ones, in the order of the forward graph.
struct TrainedParameter {
  std::string name;
  TensorType type;
};
[[nodiscard]] Graph make_update_program(const OpTable& table, const std::vector<TrainedParameter>& parameters, const AdamWOptions& options);
[[nodiscard]] std::string moment_name(std::string_view parameter, int k);  // "adamw.m.X" (k = 0), "adamw.v.X" (k = 1)
[[nodiscard]] std::string master_name(std::string_view parameter);         // "adamw.master.X"

}  // namespace glim
