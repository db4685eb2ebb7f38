#include "ops/builtin_ops.h"

namespace glim {
namespace ops {
#define GLIM_OP(folder, symbol) extern const OpDef k##symbol;
#include "ops/op_list.def"
#undef GLIM_OP
}  // namespace ops

const OpTable& builtin_ops() {
  static const OpTable table = [] {
    OpTable all;
#define GLIM_OP(folder, symbol) \
  if (auto row = all.add(ops::k##symbol); !row) report_bug(__FILE__, __LINE__, #symbol, row.error().message);
#include "ops/op_list.def"
#undef GLIM_OP
    return all;
  }();
  return table;
}

}  // namespace glim
