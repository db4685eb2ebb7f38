#include "runtime/config_values.h"

#include <fmt/format.h>

#include <filesystem>

namespace glim {
namespace {

Error bad(const Scalar& scalar, std::string_view key, std::string_view expected) {
  return invalid_argument(fmt::format("'{}' must be {}", key, expected), scalar.where);
}

}  // namespace

std::string beside(const std::string& file, const std::string& path) {
  const std::filesystem::path full = std::filesystem::path(file).parent_path() / path;
  std::error_code error;
  return std::filesystem::path(path).is_absolute() || !std::filesystem::exists(full, error) ? path : full.string();
}

Status take_integer(TableReader& table, std::string_view key, int64_t minimum, int64_t& value) {
  GLIM_ASSIGN(const std::optional<Scalar> scalar, table.take_scalar(key));
  if (!scalar) return ok();
  if (scalar->kind != Scalar::Kind::kInteger || scalar->integer < minimum)
    return bad(*scalar, key, fmt::format("an integer of at least {}", minimum));
  value = scalar->integer;
  return ok();
}

Status take_real(TableReader& table, std::string_view key, double minimum, double maximum, double& value) {
  GLIM_ASSIGN(const std::optional<Scalar> scalar, table.take_scalar(key));
  if (!scalar) return ok();
  const bool is_integer = scalar->kind == Scalar::Kind::kInteger;
  const double number = is_integer ? static_cast<double>(scalar->integer) : scalar->real;
  if ((!is_integer && scalar->kind != Scalar::Kind::kReal) || number < minimum || number > maximum) {
    return bad(*scalar, key, fmt::format("a number from {} to {}", minimum, maximum));
  }
  value = number;
  return ok();
}

Status take_names(TableReader& table, std::string_view key, std::vector<std::string>& names) {
  const TomlMember* member = table.take(key);
  if (member == nullptr) return ok();
  GLIM_ASSIGN(const std::vector<Name> found, to_names(member->value, key));
  for (const Name& name : found) names.push_back(name.text);
  return ok();
}

}  // namespace glim
