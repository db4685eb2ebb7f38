#include "engine/passes/pass_list.h"

#include <fmt/format.h>

#include "engine/passes/cse.h"
#include "engine/passes/dce.h"
#include "engine/passes/fuse.h"
#include "engine/passes/hoist_over_split.h"
#include "engine/passes/order.h"
#include "engine/passes/pack_linears.h"
#include "engine/passes/rematerialise.h"
#include "engine/suggest.h"

namespace glim {
namespace {

constexpr Pass kForward[] = {
    {"dce", dce, "first: a reader that nobody needs would keep a value from being interior to a fusion, or a weight from being packed"},
    {"fuse_forward", fuse_forward,
     "before autodiff, so that interior values (logits) never become saved primals; before cse, because cse would give the logits that a "
     "model writes twice (for the loss, and to be read) two readers; before packing, which would hide a head's linear behind a split"},
    {"cse", cse, "after fusion, for the reason given there; before packing, so that linears of equal inputs become linears of one input"},
    {"pack_linears", pack_linears, "last before autodiff, so that the backward of a pack is one product per gradient by itself"},
};

constexpr Pass kJoint[] = {
    {"dce", dce, "first: vjp rules also build cotangents that nobody asked for, and they would count as readers"},
    {"cse", cse,
     "before fusion: vjp rules build the same node again and again, and a pattern should meet it once; before "
     "rematerialisation, because it would merge what that repeats on purpose"},
    {"hoist_over_split", hoist_over_split,
     "before fusion, which can then widen the product of a packed weight gradient and let it add in place"},
    {"fuse_joint", fuse_joint, "after autodiff: joins a forward node with its vjp, and accumulations with the products that they add"},
    {"dce_after_fusion", dce,
     "a fused node may need less than the nodes that it replaced; rematerialisation must not pay for what is dead"},
    {"order", order, "before rematerialisation, which emits what runs again just before its first reader on the tape"},
    {"rematerialise", rematerialise, "after everything that removes nodes, so that its budget is spent on what is left; no cse may follow"},
};

}  // namespace

std::span<const Pass> forward_passes() { return kForward; }
std::span<const Pass> joint_passes() { return kJoint; }

Status check_pass_names(const PassOptions& options) {
  std::vector<std::string_view> names;
  for (const std::span<const Pass> list : {forward_passes(), joint_passes()}) {
    for (const Pass& pass : list) names.push_back(pass.name);
  }
  const auto check = [&](const std::string& name) -> Status {
    if (std::find(names.begin(), names.end(), name) != names.end()) return ok();
    return invalid_argument(fmt::format("no pass is named '{:.60}'{}", name, did_you_mean(name, names)));
  };
  for (const std::string& name : options.disabled) GLIM_TRY(check(name));
  return options.stop_after.empty() ? ok() : check(options.stop_after);
}

}  // namespace glim
