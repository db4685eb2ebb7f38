// Every case of every op can be measured, at sizes of its own choice.
#include "runtime/op_bench.h"

#include <gtest/gtest.h>

#include "ops/builtin_ops.h"

namespace glim {
namespace {

const OpCase& case_of(const OpDef& def, std::string_view name) {
  static std::vector<OpCase> cases;
  cases = def.cases();
  for (const OpCase& each : cases) {
    if (each.name == name) return each;
  }
  ADD_FAILURE() << def.name << " has no case " << name;
  return cases.front();
}
const OpDef& op(std::string_view name) { return builtin_ops()[*builtin_ops().find(name)]; }

TEST(OpBench, ExtentsGrowTogetherAsFarAsTypesAllow) {
  const OpCase linear = grown(op("linear"), case_of(op("linear"), "bias"), DType::kF32, 64);
  EXPECT_EQ(linear.inputs[0].shape, (Shape{64, 64}));
  EXPECT_EQ(linear.inputs[1].shape, (Shape{64, 64}));
  EXPECT_EQ(linear.inputs[2].shape, (Shape{64}));
  for (const OpCase& c : op("embedding").cases()) {  // ids stay below the rows of the table
    const OpCase large = grown(op("embedding"), c, DType::kF32, 64);
    EXPECT_EQ(large.inputs[0].limit, c.inputs[0].limit == c.inputs[1].shape[0] ? 64 : c.inputs[0].limit) << c.name;
  }
  for (const OpCase& c : op("attention").cases()) {  // no head is that wide
    const OpCase large = grown(op("attention"), c, DType::kF32, 4096);
    EXPECT_EQ(large.inputs[0].shape[1], c.inputs[0].shape[1]) << c.name;
    EXPECT_EQ(large.inputs[3].shape, c.inputs[3].shape) << c.name;
  }
  const OpCase same = grown(op("linear"), case_of(op("linear"), "bias"), DType::kF32, 1);
  EXPECT_EQ(same.inputs[0].shape, case_of(op("linear"), "bias").inputs[0].shape);
}

TEST(OpBench, TimesEveryCaseOfEveryOp) {
  const OpTable& table = builtin_ops();
  int num_timed = 0;
  for (const DType real : {DType::kF32, DType::kBF16}) {
    for (uint16_t row = 1; row < table.size(); ++row) {
      for (const OpCase& c : table[OpId{row}].cases()) {
        const Result<std::optional<OpTiming>> timing = time_case(table, OpId{row}, c, {.real = real, .extent = 24, .seconds = 0});
        ASSERT_TRUE(timing) << table[OpId{row}].name << " " << c.name << ": " << timing.error().to_string();
        if (!*timing) continue;
        ++num_timed;
        EXPECT_GT((*timing)->seconds, 0) << table[OpId{row}].name << " " << c.name;
        EXPECT_GT((*timing)->cost.bytes_written, 0) << table[OpId{row}].name << " " << c.name;
      }
    }
  }
  EXPECT_GT(num_timed, 250);
}

}  // namespace
}  // namespace glim
