#include <fmt/format.h>

#include "engine/op.h"
#include "engine/suggest.h"

namespace glim {
namespace {
// Leaves have no kernel and no rule: they are where a program's data comes from.
constexpr OpDef kLeaf{.name = "leaf", .summary = "an input or a state of the program", .diff = Diff::kNoVjp, .role = Role::kLeaf};
}  // namespace

OpTable::OpTable() : rows_{&kLeaf} {}

Result<OpId> OpTable::add(const OpDef& def) {
  if (find(def.name)) return invalid_argument(fmt::format("an op named '{}' is registered already", def.name));
  if (!complete(def)) return invalid_argument(fmt::format("op '{}' is incomplete: every field of OpDef must be said", def.name));
  GLIM_CHECK(rows_.size() < OpId::kNone, "op table is full");
  rows_.push_back(&def);
  return OpId{static_cast<uint16_t>(rows_.size() - 1)};
}

std::optional<OpId> OpTable::find(std::string_view name) const {
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row]->name == name) return OpId{static_cast<uint16_t>(row)};
  }
  return std::nullopt;
}

OpId OpTable::with_role(Role role) const {
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row]->role == role) return OpId{static_cast<uint16_t>(row)};
  }
  report_bug(__FILE__, __LINE__, "with_role", "the op table has no op with the role that a pass needs");
}

std::vector<std::string_view> OpTable::names() const {
  std::vector<std::string_view> names;
  for (const OpDef* def : rows_) names.push_back(def->name);
  return names;
}

}  // namespace glim
