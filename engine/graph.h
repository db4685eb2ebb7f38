#pragma once
// A compute graph: append-only plain arrays. Index order = tape order = topological order.
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/id.h"
#include "engine/op.h"
#include "engine/type.h"

namespace glim {

struct Node {
  OpId op;
  uint16_t num_inputs = 0, num_outputs = 0;
  uint32_t inputs = 0;  // offset into the operand pool
  ValueId outputs;      // first of num_outputs consecutive values
  uint32_t attrs = 0;   // offset into the attribute-word pool
};
static_assert(sizeof(Node) == 20 && std::is_trivially_copyable_v<Node>);

// What a leaf holds decides its arena. Everything but kInput and kSeed is state: it outlives a run of the program.
enum class LeafKind : uint8_t {
  kInput,      // set from outside before each run
  kSeed,       // the cotangent of a differentiated output (1 for a plain loss). What depends on it is the backward pass
  kParameter,  // weights
  kGradient,   // main gradients
  kOptimizer,  // moments, master weights, step count
};
[[nodiscard]] std::string_view to_string(LeafKind kind);
[[nodiscard]] constexpr bool is_state(LeafKind kind) { return kind != LeafKind::kInput && kind != LeafKind::kSeed; }

struct Leaf {
  ValueId value;
  LeafKind kind = LeafKind::kInput;
  std::string name;
};
struct NamedValue {
  std::string name;
  ValueId value;
};
// At the end of a run `state` holds what `next` was.
struct StateUpdate {
  ValueId state, next;
};

// Where a node comes from: for dumps, errors, and finding the instances of a stack.
struct Origin {
  uint32_t path = 0;  // interned block path such as "decoder.3"; 0 is ""
  uint32_t file = 0;  // interned file name
  int32_t line = 0, column = 0;
  bool is_vjp = false;  // built by the vjp rule of a node from there
};

class Graph {
 public:
  explicit Graph(const OpTable& table) : table_(&table), strings_{""} {}

  ValueId add_leaf(LeafKind kind, std::string_view name, const TensorType& type);
  // Appends a node. Checks the operands, infers the types, and fails with the op's own message. `in` has one entry per
  // operand of the op (invalid where an optional one is absent; trailing absent ones may be left out).
  Result<NodeId> emit(OpId op, std::span<const ValueId> in, std::span<const uint32_t> attr_words);
  template <class Attrs>
  Result<NodeId> emit(OpId op, std::span<const ValueId> in, const Attrs& attrs) {
    const std::vector<uint32_t> words = to_words(attrs);
    return emit(op, in, std::span<const uint32_t>(words));
  }
  void add_output(std::string_view name, ValueId value) { outputs_.push_back({std::string(name), value}); }
  void add_update(ValueId state, ValueId next);

  [[nodiscard]] const OpTable& table() const { return *table_; }
  [[nodiscard]] const OpDef& def(NodeId n) const { return (*table_)[nodes_[n.index].op]; }
  [[nodiscard]] Node node(NodeId n) const { return nodes_[n.index]; }  // by value: no reference survives an emit
  [[nodiscard]] std::span<const ValueId> inputs(NodeId n) const {
    return {operands_.data() + nodes_[n.index].inputs, nodes_[n.index].num_inputs};
  }
  [[nodiscard]] ValueId output(NodeId n, uint32_t k = 0) const { return {nodes_[n.index].outputs.index + k}; }
  [[nodiscard]] std::span<const uint32_t> attr_words(NodeId n) const;
  template <class Attrs>
  [[nodiscard]] Attrs attrs(NodeId n) const {
    return from_words<Attrs>(attr_words(n));
  }
  [[nodiscard]] const TensorType& type(ValueId v) const { return value_types_[v.index]; }
  [[nodiscard]] NodeId producer(ValueId v) const { return value_producers_[v.index]; }
  [[nodiscard]] uint32_t output_number(ValueId v) const { return v.index - nodes_[value_producers_[v.index].index].outputs.index; }
  [[nodiscard]] bool is_leaf(ValueId v) const { return nodes_[value_producers_[v.index].index].op == kLeafOp; }
  [[nodiscard]] bool is_leaf(NodeId n) const { return nodes_[n.index].op == kLeafOp; }
  [[nodiscard]] const Leaf& leaf(ValueId v) const;  // of a leaf value
  [[nodiscard]] size_t num_nodes() const { return nodes_.size(); }
  [[nodiscard]] size_t num_values() const { return value_types_.size(); }
  [[nodiscard]] std::span<const Leaf> leaves() const { return leaves_; }
  [[nodiscard]] std::span<const NamedValue> outputs() const { return outputs_; }
  [[nodiscard]] std::span<const StateUpdate> updates() const { return updates_; }
  [[nodiscard]] ValueId find_leaf(std::string_view name) const;    // invalid if there is none
  [[nodiscard]] ValueId find_output(std::string_view name) const;  // invalid if there is none
  // Operand types by position, null where absent: what infer, cost and memory facts take.
  [[nodiscard]] std::vector<const TensorType*> input_types(NodeId n) const;
  [[nodiscard]] Cost cost(NodeId n) const;
  [[nodiscard]] AliasFact alias(NodeId n, uint16_t output) const;
  [[nodiscard]] Region region(NodeId n, uint16_t index) const;

  // Nodes emitted from now on come from here.
  void set_origin(Origin origin) { current_origin_ = origin; }
  [[nodiscard]] Origin current_origin() const { return current_origin_; }
  [[nodiscard]] Origin origin(NodeId n) const { return node_origins_[n.index]; }
  uint32_t intern(std::string_view text);
  [[nodiscard]] const std::string& text(uint32_t interned) const { return strings_[interned]; }
  // "decoder.3 (model.toml:40:5)"
  [[nodiscard]] std::string describe_origin(NodeId n) const;
  // Bytes held by the arrays (for the compile-time budget).
  [[nodiscard]] size_t memory_bytes() const;

 private:
  friend struct GraphSurgery;  // tests break a graph's laws with it, to see verify object
  const OpTable* table_;
  std::vector<Node> nodes_;
  std::vector<ValueId> operands_;        // pooled operand lists
  std::vector<uint32_t> attr_words_;     // pooled attributes
  std::vector<TensorType> value_types_;  // structure of arrays over values
  std::vector<NodeId> value_producers_;
  std::vector<Origin> node_origins_;
  std::vector<Leaf> leaves_;
  std::vector<NamedValue> outputs_;
  std::vector<StateUpdate> updates_;
  std::vector<std::string> strings_;
  Origin current_origin_;
};

}  // namespace glim
