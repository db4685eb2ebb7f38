#pragma once
// The declaration of an op: everything the compiler, the kernels, the tests and the tools know about it, in one struct.
// The engine names no op; it reaches them through an OpTable, by row or by role.
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/attr.h"
#include "engine/id.h"
#include "engine/type.h"

namespace glim {

class Graph;
struct Node;
struct KernelArgs;  // ops/kernel_context.h

struct OperandSpec {
  std::string_view name;
  bool optional = false;
  bool variadic = false;  // only the last one: any number of operands from here on
};

using Types = std::vector<TensorType>;

// Operand types by position; null where the node does not have the (optional) operand.
struct InferArgs {
  std::span<const TensorType* const> in;
  std::span<const uint32_t> attr_words;
  const void* user_data = nullptr;  // OpDef::user_data, as in the other arguments
  template <class Attrs>
  [[nodiscard]] Attrs attrs() const {
    return from_words<Attrs>(attr_words);
  }
};
using InferFn = Result<Types> (*)(const InferArgs&);

// A vjp rule builds graph. An invalid id is a structural zero, both ways. It returns one cotangent per operand.
struct VjpArgs {
  std::span<const uint32_t> attr_words;
  std::span<const ValueId> in;          // primals; invalid where absent
  std::span<const ValueId> out;         // saved primals
  std::span<const ValueId> cotangents;  // one per output
  const void* user_data = nullptr;
  template <class Attrs>
  [[nodiscard]] Attrs attrs() const {
    return from_words<Attrs>(attr_words);
  }
};
using VjpFn = std::vector<ValueId> (*)(Graph&, const VjpArgs&);

// Builds the same function from plainer ops: the oracle of a fused op, and its fallback. Returns one value per output
// (invalid where the composition has no such output).
using DecomposeFn = std::vector<ValueId> (*)(Graph&, std::span<const ValueId> in, std::span<const uint32_t> attr_words);

struct CostArgs {
  std::span<const TensorType* const> in;
  std::span<const TensorType> out;
  std::span<const uint32_t> attr_words;
  const void* user_data = nullptr;
  template <class Attrs>
  [[nodiscard]] Attrs attrs() const {
    return from_words<Attrs>(attr_words);
  }
};
struct Cost {
  double flops = 0;            // multiply and add counted as two
  double bytes_read = 0;       // each operand once
  double bytes_written = 0;    // each output once
  size_t workspace_bytes = 0;  // scratch that the kernel needs while it runs
};
using CostFn = Cost (*)(const CostArgs&);

// Where an output's bytes may lie.
enum class AliasKind : uint8_t {
  kNone,      // its own buffer
  kInPlace,   // may overwrite `operand`, element for element
  kMust,      // is `operand`'s buffer, updated (accumulation)
  kView,      // is a region of `operand` that starts `offset` elements in (rows keep the operand's stride); no kernel runs
  kAssemble,  // consists of all operands, each at its own offset (see place_operand); a kernel copies those not built in place
};
struct AliasFact {
  AliasKind kind = AliasKind::kNone;
  uint16_t operand = 0;
};
// Regions are written as (row, column) of a rank-2 tensor, or (row, 0) of a rank-1 tensor.
struct Region {
  int64_t row = 0, column = 0;
};
struct MemoryFacts {
  AliasFact (*alias)(const InferArgs&, uint16_t output) = nullptr;
  Region (*region)(const InferArgs&, uint16_t index) = nullptr;  // kView: where output `index` lies; kAssemble: where operand `index` lies
};

// What a fusion pattern found: `interior` nodes and the root are replaced by one node of `op`.
struct FusionMatch {
  OpId op;
  std::vector<ValueId> operands;  // values of the graph that was searched
  std::vector<uint32_t> attr_words;
  std::vector<std::pair<ValueId, uint16_t>> replaced;  // old value -> output of the new node
  std::vector<NodeId> interior;                        // without the root
};
struct FuseArgs;  // engine/passes/fuse.h
using FuseFn = std::optional<FusionMatch> (*)(const FuseArgs&);
struct FusionPattern {
  std::string_view root;  // name of the op that a match ends in
  FuseFn match = nullptr;
  bool joint = false;  // runs after autodiff; otherwise before it
};

enum class Diff : uint8_t { kUnset, kHasVjp, kNoVjp };  // a missing rule must be said, not forgotten
// What the precision policy may do with the op in a bf16 graph.
enum class Precision : uint8_t {
  kUnset,
  kFollows,      // computes in f32 inside, stores the dtype of its operands
  kAccumulates,  // its reductions come out in the accumulation type
  kExact,        // never narrowed (indices, optimizer state, scalars)
};
enum class Role : uint8_t { kNone, kLeaf, kAdd, kCast, kCopy, kConcat, kSplit, kLinear, kFill, kMatmul, kCollective };
// How the op's work may be split over devices.
enum class Shard : uint8_t {
  kUnset,
  kElementwise,  // any axis
  kRows,         // independent rows (tokens)
  kContraction,  // rows, output columns, or the contracted axis followed by a sum
  kHeads,        // heads, or segments
  kVocabulary,   // rows, or vocabulary with an exchange of statistics
  kNone,         // replicated
};

// A test input: what to fill an operand with.
enum class Fill : uint8_t { kAbsent, kNormal, kPositive, kIndices, kLabels, kSegments, kPositions, kOne, kZero };
enum class CaseDType : uint8_t { kReal, kAccumulation, kI32, kI64, kF64 };  // kReal is run as f64, f32 and bf16
struct CaseInput {
  Shape shape;
  Fill fill = Fill::kNormal;
  CaseDType dtype = CaseDType::kReal;
  int64_t limit = 0;  // kIndices, kLabels: exclusive upper bound (labels are ignored, -100, about one in four)
};
struct OpCase {
  std::string name;
  std::vector<CaseInput> inputs;
  std::vector<uint32_t> attr_words;
};

struct OpDef {
  std::string_view name;
  std::string_view summary;  // the formula, and its source where it has one
  std::span<const OperandSpec> operands{};
  std::span<const std::string_view> outputs{};  // names; the last one repeats when an op has more
  std::span<const AttrSpec> attrs{};
  Diff diff = Diff::kUnset;
  InferFn infer = nullptr;
  VjpFn vjp = nullptr;
  DecomposeFn decompose = nullptr;
  std::span<const FusionPattern> fusions{};
  void (*cpu)(const KernelArgs&) = nullptr;
  void (*cuda)(const KernelArgs&) = nullptr;  // null in a CPU-only build
  CostFn cost = nullptr;
  MemoryFacts memory{};
  Precision precision = Precision::kUnset;
  Role role = Role::kNone;
  Shard shard = Shard::kUnset;
  std::vector<OpCase> (*cases)() = nullptr;
  const void* user_data = nullptr;  // what an op that is registered at run time stands on: infer, vjp, kernels, cost and alias facts get it

  [[nodiscard]] size_t num_attr_words() const { return attrs.size() * kWordsPerAttr; }
};

// Every op file ends in static_assert(complete(kOp)).
constexpr bool complete(const OpDef& def) {
  return !def.name.empty() && !def.summary.empty() && !def.outputs.empty() && def.diff != Diff::kUnset && def.infer != nullptr &&
         (def.diff == Diff::kHasVjp) == (def.vjp != nullptr) && def.cpu != nullptr && def.cost != nullptr && def.memory.alias != nullptr &&
         def.precision != Precision::kUnset && def.shard != Shard::kUnset && def.cases != nullptr;
}

// A list of ops. Row 0 is always the leaf op. Definitions must outlive the table.
class OpTable {
 public:
  OpTable();
  // Fails when the name is taken, or when the definition is incomplete.
  Result<OpId> add(const OpDef& def);
  [[nodiscard]] const OpDef& operator[](OpId op) const { return *rows_[op.index]; }
  [[nodiscard]] std::optional<OpId> find(std::string_view name) const;
  // The op with this role; a missing one is a bug of the table.
  [[nodiscard]] OpId with_role(Role role) const;
  [[nodiscard]] size_t size() const { return rows_.size(); }
  [[nodiscard]] std::vector<std::string_view> names() const;

 private:
  std::vector<const OpDef*> rows_;
};

inline constexpr OpId kLeafOp{0};

}  // namespace glim
