#include "models/toml_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/suggest.h"
#include "models/expression.h"

namespace glim {

const TomlMember* TableReader::take(std::string_view key) {
  asked_.emplace_back(key);
  return table_.find(key);
}

Result<const TomlMember*> TableReader::need(std::string_view key) {
  if (const TomlMember* member = take(key)) return member;
  return invalid_argument(fmt::format("{} needs the key '{}'", what_, key), table_.where);
}

Result<bool> TableReader::take_flag(std::string_view key, bool otherwise) {
  const TomlMember* member = take(key);
  if (member == nullptr) return otherwise;
  GLIM_TRY(expect_kind(member->value, TomlValue::Kind::kBool, key));
  return member->value.flag;
}

Result<Name> TableReader::take_text(std::string_view key) {
  const TomlMember* member = take(key);
  return member == nullptr ? Result<Name>(Name{}) : to_text(member->value, key);
}

Result<Name> TableReader::need_text(std::string_view key) {
  GLIM_ASSIGN(const TomlMember* member, need(key));
  return to_text(member->value, key);
}

Result<std::optional<Scalar>> TableReader::take_scalar(std::string_view key) {
  const TomlMember* member = take(key);
  if (member == nullptr) return std::optional<Scalar>();
  GLIM_ASSIGN(Scalar scalar, to_scalar(member->value, key));
  return std::optional<Scalar>(std::move(scalar));
}

Status TableReader::finish() const {
  for (const TomlMember& member : table_.members) {
    if (std::find(asked_.begin(), asked_.end(), member.key) != asked_.end()) continue;
    return invalid_argument(fmt::format("{} has no key '{}'{}", what_, member.key, did_you_mean(member.key, asked_)), member.where);
  }
  return ok();
}

Status expect_kind(const TomlValue& value, TomlValue::Kind kind, std::string_view name) {
  if (value.kind == kind) return ok();
  return invalid_argument(fmt::format("'{}' must be {}, not {}", name, to_string(kind), to_string(value.kind)), value.where);
}

Result<Name> to_text(const TomlValue& value, std::string_view name) {
  GLIM_TRY(expect_kind(value, TomlValue::Kind::kString, name));
  if (value.text.empty()) return invalid_argument(fmt::format("'{}' must not be empty", name), value.where);
  return Name{value.text, value.where};
}

Result<Scalar> to_scalar(const TomlValue& value, std::string_view name) {
  Scalar scalar;
  scalar.where = value.where;
  switch (value.kind) {
    case TomlValue::Kind::kInteger:
      scalar.integer = value.integer;
      scalar.real = static_cast<double>(value.integer);
      return scalar;
    case TomlValue::Kind::kReal:
      scalar.kind = Scalar::Kind::kReal;
      scalar.real = value.real;
      return scalar;
    case TomlValue::Kind::kBool:
      scalar.kind = Scalar::Kind::kBool;
      scalar.flag = value.flag;
      return scalar;
    case TomlValue::Kind::kString:
      scalar.kind = Scalar::Kind::kText;
      scalar.text = value.text;
      return scalar;
    default:
      return invalid_argument(fmt::format("'{}' must be a number, a boolean or a string, not {}", name, to_string(value.kind)),
                              value.where);
  }
}

Result<std::vector<Scalar>> to_scalars(const TomlValue& value, std::string_view name) {
  GLIM_TRY(expect_kind(value, TomlValue::Kind::kArray, name));
  std::vector<Scalar> scalars;
  for (const TomlValue& item : value.items) {
    GLIM_ASSIGN(Scalar scalar, to_scalar(item, name));
    scalars.push_back(std::move(scalar));
  }
  return scalars;
}

Result<std::vector<Name>> to_names(const TomlValue& value, std::string_view name) {
  std::vector<Name> names;
  if (value.kind == TomlValue::Kind::kArray) {
    for (const TomlValue& item : value.items) {
      GLIM_ASSIGN(Name text, to_text(item, name));
      names.push_back(std::move(text));
    }
    return names;
  }
  GLIM_ASSIGN(Name text, to_text(value, name));
  names.push_back(std::move(text));
  return names;
}

Status expect_identifier(const Name& name, std::string_view what) {
  if (is_identifier(name.text) && name.text.size() <= 64) return ok();
  return invalid_argument(fmt::format("'{}' cannot name {}: names are at most 64 letters, digits and _, not starting with a digit",
                                      name.text.substr(0, 80), what),
                          name.where);
}

}  // namespace glim
