#pragma once
// From a model file to programs that share arenas: the whole flow of the compiler on one screen (compile.cpp).
#include <array>
#include <memory>

#include "autodiff/training.h"
#include "engine/pass.h"
#include "models/build.h"
#include "runtime/executable.h"

namespace glim {

enum class ProgramKind : uint8_t {
  kForward,  // outputs only
  kFirst,    // a training micro-step that replaces the main gradients
  kNext,     // a training micro-step that adds to them
  kUpdate,   // the optimizer
};
[[nodiscard]] std::string_view to_string(ProgramKind kind);  // "forward", "first", "next", "update"
[[nodiscard]] std::optional<ProgramKind> parse_program_kind(std::string_view text);

// What a training program gives, and any program whose options do not say.
inline constexpr std::string_view kTrainingOutputs[] = {"loss", "token_accuracy", "num_correct", "num_valid"};

struct CompileOptions {
  DType real = DType::kF32;                     // parameters and activations
  std::map<std::string, int64_t> runtime_dims;  // T, G, R; those that the model does not have are not looked at
  std::vector<std::string> outputs;             // empty: the model's scalar training outputs
  std::vector<std::string> forward_outputs;     // of kForward, when it shall have others (these hold the ones above too); empty: the same
  std::vector<std::string> optional_inputs;     // "denominator"; those that the model does not have are not looked at
  std::vector<ProgramKind> programs{ProgramKind::kForward};
  std::function<bool(std::string_view parameter)> trains;  // absent: all
  AdamWOptions adamw;
  PassContext passes;
  PassOptions driver;
};

struct CompiledModel {
  std::vector<ModelInput> inputs;  // of all programs; value ids are not kept
  std::vector<ModelParameter> parameters;
  std::map<std::string, int64_t> dims;
  std::vector<std::unique_ptr<Program>> programs;
  LeafLayout layout;
  std::vector<PassReport> pass_reports;

  [[nodiscard]] const Program* find(ProgramKind kind) const;         // nullptr: was not asked for
  [[nodiscard]] std::array<size_t, kNumArenas> arena_bytes() const;  // enough for every program
};

// One program as a graph, after all its passes (or after options.driver.stop_after: a pass, "build" or "autodiff"). `facts` takes what the
// build found, without its graph.
Result<Graph> lower(const ModelSpec& spec, const OpTable& table, const CompileOptions& options, ProgramKind kind, BuiltModel& facts);
Result<CompiledModel> compile(const ModelSpec& spec, const OpTable& table, const CompileOptions& options);

}  // namespace glim
