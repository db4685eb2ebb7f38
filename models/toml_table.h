#pragma once
// Typed reading of one TOML table: what is missing, of the wrong kind, or unknown is an error at its place.
#include <optional>
#include <string>
#include <vector>

#include "models/spec.h"
#include "models/toml_file.h"

namespace glim {

class TableReader {
 public:
  // `what` names the table in errors: "block 'embed'". Fails later, in finish(), for keys that nobody took.
  TableReader(const TomlValue& table, std::string what) : table_(table), what_(std::move(what)) {}

  const TomlMember* take(std::string_view key);
  Result<const TomlMember*> need(std::string_view key);
  Result<bool> take_flag(std::string_view key, bool otherwise);
  Result<Name> take_text(std::string_view key);  // empty when absent
  Result<Name> need_text(std::string_view key);
  Result<std::optional<Scalar>> take_scalar(std::string_view key);
  [[nodiscard]] Status finish() const;
  [[nodiscard]] const SourceLocation& where() const { return table_.where; }
  [[nodiscard]] const std::string& what() const { return what_; }

 private:
  const TomlValue& table_;
  std::string what_;
  std::vector<std::string> asked_;
};

// Each fails at the value's place with "NAME must be ..., not ...".
Status expect_kind(const TomlValue& value, TomlValue::Kind kind, std::string_view name);
Result<Name> to_text(const TomlValue& value, std::string_view name);
Result<Scalar> to_scalar(const TomlValue& value, std::string_view name);
Result<std::vector<Scalar>> to_scalars(const TomlValue& value, std::string_view name);  // an array
Result<std::vector<Name>> to_names(const TomlValue& value, std::string_view name);      // a string or an array of strings
// A name that may stand in expressions.
Status expect_identifier(const Name& name, std::string_view what);

}  // namespace glim
