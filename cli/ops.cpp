// glim ops: every op of the table.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <cstdio>

#include "cli/command.h"
#include "ops/builtin_ops.h"

namespace glim::cli {
namespace {

nlohmann::ordered_json describe(const OpDef& def) {
  nlohmann::ordered_json op{{"name", def.name},
                            {"summary", def.summary},
                            {"has_vjp", def.diff == Diff::kHasVjp},
                            {"fused", def.decompose != nullptr},
                            {"cuda", def.cuda != nullptr},
                            {"cases", def.cases().size()}};
  for (const OperandSpec& operand : def.operands)
    op["operands"].push_back(std::string(operand.name) + (operand.optional ? "?" : operand.variadic ? "..." : ""));
  for (const std::string_view output : def.outputs) op["outputs"].push_back(output);
  for (const AttrSpec& attr : def.attrs) {
    nlohmann::ordered_json entry{{"name", attr.name}, {"doc", attr.doc}, {"required", attr.required}};
    for (const std::string_view choice : attr.choices) entry["choices"].push_back(choice);
    op["attrs"].push_back(std::move(entry));
  }
  return op;
}

Status list(bool json) {
  const OpTable& table = builtin_ops();
  for (uint16_t row = 1; row < table.size(); ++row) {
    const nlohmann::ordered_json op = describe(table[OpId{row}]);
    if (json) {
      std::printf("%s\n", op.dump().c_str());
      continue;
    }
    const auto join = [](const nlohmann::ordered_json& list) {
      std::string text;
      for (const auto& item : list) text += (text.empty() ? "" : ", ") + (item.is_object() ? item["name"] : item).get<std::string>();
      return text;
    };
    std::printf("%-26s (%s) -> %s%s\n%28s%s\n", op["name"].get<std::string>().c_str(),
                join(op.value("operands", nlohmann::ordered_json::array())).c_str(), join(op["outputs"]).c_str(),
                op.contains("attrs") ? fmt::format("  {{{}}}", join(op["attrs"])).c_str() : "", "",
                op["summary"].get<std::string>().c_str());
  }
  return ok();
}

}  // namespace

void add_ops(CLI::App& app, Body& body) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("ops", "list the ops that models are made of");
  command->add_flag("--json", *json, "one JSON object per line");
  command->footer("Example: glim ops --json | jq .name");
  command->callback([json, &body] { body = [json] { return list(*json); }; });
}

}  // namespace glim::cli
