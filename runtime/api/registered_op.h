#pragma once
// An op that the host registers: the engine's definition of it, whose plain functions find the host's through OpDef::user_data.
#include <list>

#include "engine/op.h"
#include "runtime/api/boundary.h"

namespace glim::v0 {

inline constexpr size_t kMaxOperands = 16;  // of a registered op, and outputs: a kernel's views lie on the stack

class RegisteredOp {
 public:
  // `failure` outlives this; what goes wrong in a gradient rule is left there.
  RegisteredOp(Op op, std::optional<glim::Error>& failure);
  RegisteredOp(const RegisteredOp&) = delete;
  RegisteredOp& operator=(const RegisteredOp&) = delete;

  [[nodiscard]] glim::Status check() const;  // what the host got wrong in the declaration
  [[nodiscard]] const OpDef& def() const { return def_; }
  [[nodiscard]] const Op& op() const { return op_; }
  void fail(glim::Error error) const;

 private:
  Op op_;
  std::vector<OperandSpec> operands_;
  std::vector<std::string_view> outputs_;
  std::vector<AttrSpec> attrs_;
  OpDef def_;
  std::optional<glim::Error>* failure_;
};

// Adds all of them to the table; `registered` owns them.
[[nodiscard]] glim::Status register_ops(const std::vector<Op>& ops, OpTable& table, std::list<RegisteredOp>& registered,
                                        std::optional<glim::Error>& failure);

}  // namespace glim::v0
