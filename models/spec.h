#pragma once
// A model file as plain data. Everything keeps its place in the file, for errors; nothing is evaluated yet.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error.h"

namespace glim {

struct Name {
  std::string text;
  SourceLocation where;
  [[nodiscard]] bool empty() const { return text.empty(); }
};

// A number, a flag, or text: an expression, the name of a value, or a choice, as the place where it stands demands.
struct Scalar {
  enum class Kind : uint8_t { kInteger, kReal, kBool, kText };
  Kind kind = Kind::kInteger;
  int64_t integer = 0;
  double real = 0;
  bool flag = false;
  std::string text;
  SourceLocation where;
};
struct NamedScalar {
  Name name;
  Scalar value;
};

struct RuntimeDim {
  Name name;
  std::string doc;
};

enum class SpecDType : uint8_t { kI32, kReal, kAccumulation };  // "i32", "real", "acc"

// How the host computes an input that the user does not give: a function of models/derived.h with named arguments.
struct DerivedSpec {
  Name from;
  std::vector<NamedScalar> arguments;
};

struct InputSpec {
  Name name;
  std::vector<Scalar> shape;
  SpecDType dtype = SpecDType::kI32;
  std::optional<std::array<Scalar, 2>> range;  // lowest and highest value
  std::optional<Scalar> allow;                 // one more value, outside the range
  std::vector<Scalar> zeroed;                  // values that stand for something else: the program sees 0
  bool ascending = false;                      // no element is smaller than the one before it
  bool optional = false;                       // there only when it is asked for
  std::optional<DerivedSpec> derived;
};

enum class InitKind : uint8_t { kNormal, kConstant };  // mean 0 and this standard deviation, or this value everywhere

struct ParamSpec {
  Name name;
  std::vector<Scalar> shape;
  SpecDType dtype = SpecDType::kReal;
  InitKind init = InitKind::kConstant;
  Scalar init_value;
  Name hf;       // checkpoint name; in a stack {i} is the layer
  Name tied_to;  // "block.param" whose leaf this is while tied_when holds
  std::optional<Scalar> tied_when;
  std::optional<Scalar> when;  // the parameter exists only then
};

struct OpArgument {  // an operand or an attribute: the op's declaration says which
  Name name;
  std::vector<Scalar> values;
  bool is_list = false;
};
struct OpSpec {
  std::vector<Name> out;  // of the first outputs
  Name op;
  std::vector<OpArgument> arguments;
  std::optional<Scalar> when;
  SourceLocation where;
};

enum class Anchor : uint8_t { kFirst, kLast, kEach };  // layer l reads entry l mod n; entry (L-1-l) mod n; entry l of exactly L

struct PatternSpec {
  Name name;
  Anchor anchor = Anchor::kFirst;
  std::vector<Scalar> values;
};

// Ops that run once (a block), or once per layer (a stack, when count is there).
struct BlockSpec {
  Name name;
  std::optional<Scalar> count;
  std::vector<Name> carry;  // values that go from layer to layer and out of the stack
  std::vector<PatternSpec> pattern;
  std::vector<ParamSpec> params;
  std::vector<OpSpec> ops;
};

struct OutputSpec {
  Name name;
  Name value;   // "block.value" or "block.value.output"
  Name layers;  // the stack of a per-layer output, whose value is a name inside it
};

// How a config.json fills the names of the file.
struct HfValue {
  Name name;                        // a dim, constant or flag
  std::vector<Name> paths;          // the first one that is there
  std::optional<Scalar> otherwise;  // when none is there, or null
};
struct HfLayers {
  Name stack, name;              // a pattern entry of a stack
  Name path;                     // an array with one element per layer; the pattern stays when it is absent
  std::vector<NamedScalar> map;  // text -> value; empty: elements are taken as they are
  bool nonzero = false;          // a number -> whether it is not 0
  std::optional<Scalar> equals;  // what a number that is not 0 must be
};
struct HfExpectation {
  Name path;
  std::vector<Scalar> allowed;  // empty: the key must be absent or null
};
struct HfSpec {
  Name model_type;
  std::vector<HfValue> values;
  std::vector<HfLayers> layers;
  std::vector<HfExpectation> expect;
  std::vector<std::string> ignore_tensors;  // patterns with *, of tensors in a checkpoint that this model does not have
};

struct ModelSpec {
  std::string file;
  std::vector<NamedScalar> dims, constants, flags;
  std::vector<RuntimeDim> runtime_dims;
  std::vector<InputSpec> inputs;
  std::vector<BlockSpec> blocks;  // in the order of `flow`
  std::vector<OutputSpec> outputs;
  HfSpec hf;
  std::string vocabulary;  // "bytes": token i is byte i; "" when the file does not say

  [[nodiscard]] const BlockSpec* find_block(std::string_view name) const;
};

inline constexpr int64_t kMaxLayers = 10'000;
inline constexpr size_t kMaxOps = 10'000;  // written in one model
inline constexpr int kMaxExtends = 16;

// Reads a file, the files that it extends, merges them and checks all that needs no op table: unknown and duplicate names,
// unknown keys, kinds of values.
Result<ModelSpec> load_spec(const std::string& file);
// The same with the text of `file`, which need not exist: it stands in messages, and what the text extends lies in its folder.
Result<ModelSpec> parse_spec(std::string_view text, const std::string& file);

}  // namespace glim
